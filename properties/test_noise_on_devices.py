"""The generators of torch and Triton are the one of numpy, bit for bit, and the published one."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from engine_under_test.errors import ConfigError
from engine_under_test.execution.kernels import noise as triton_noise
from engine_under_test.sampling import torch_noise
from engine_under_test.sampling.noise import PhiloxNoise
from engine_under_test.seams import Purpose
from properties.test_noise import KNOWN_ANSWERS, words

Uniform = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, int, int], torch.Tensor]
GENERATORS: dict[str, Uniform] = {"torch": torch_noise.uniform, "Triton, interpreted": triton_noise.uniform}
SEEDS = [0, 1, 2**32 - 1, 2**32, 2**63 - 1, 2**63, 2**64 - 1, 0x0123456789ABCDEF]
CHOICES, POSITIONS = [0, 1, 2, 7, 2**32 - 1, 0, 3, 2], [0, 2**32 - 1, 5, 70_000, 2**31, 1, 2, 5]


@pytest.mark.parametrize(("counter", "key", "output"), KNOWN_ANSWERS.values(), ids=KNOWN_ANSWERS)
def test_torch_gives_the_published_answer(counter: str, key: str, output: str) -> None:
    counters, keys = torch.tensor([words(counter)]).T, torch.tensor([words(key)]).T
    assert torch_noise.philox4x32(counters, keys).tolist() == [words(output)]


@pytest.mark.parametrize("name", GENERATORS)
def test_an_address_of_all_zeros_has_the_published_words(name: str) -> None:
    zero = torch.zeros(1, dtype=torch.int64)
    found = GENERATORS[name](zero, zero, zero, 0, 4)[0]
    assert [int(each * 2**32) for each in found.tolist()] == words(KNOWN_ANSWERS["all zeros"][2])


@pytest.mark.parametrize("name", GENERATORS)
@pytest.mark.parametrize("num_lanes", [1, 3, 4, 97, 513, 1030])
@pytest.mark.parametrize("purpose", [Purpose.SAMPLE, Purpose.DRAFT], ids=["sample", "draft"])
def test_every_bit_of_every_uniform_is_numpys(name: str, num_lanes: int, purpose: int) -> None:
    expected = PhiloxNoise().uniform(
        np.array(SEEDS, np.uint64), np.array(CHOICES, np.uint32), np.array(POSITIONS, np.uint32), purpose, num_lanes
    )
    columns = torch_noise.as_words(SEEDS), torch.tensor(CHOICES), torch.tensor(POSITIONS)
    found = GENERATORS[name](*columns, purpose, num_lanes)
    assert (found.dtype, found.shape) == (torch.float64, expected.shape)
    assert (found.numpy().view(np.uint64) == expected.view(np.uint64)).all()


def test_columns_of_another_length_are_refused() -> None:
    with pytest.raises(ConfigError, match="choices"):
        triton_noise.uniform(torch.zeros(2, dtype=torch.int64), torch.zeros(3, dtype=torch.int64), torch.zeros(2).long(), 0, 4)
