"""The edges of the sampler's parameters and logits, each by name, in both samplers, against the law in float64."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch

from differential.sampler_cases import Batch, Case, as_bfloat16
from differential.sampler_rows import Rows, Sample, law_of
from engine_under_test.sampling import sampler, torch_sampler
from engine_under_test.sampling.adjustments import Processors
from engine_under_test.sampling.noise import PhiloxNoise
from engine_under_test.sampling.sampler import Draws, Sampled
from engine_under_test.seams import Noise
from engine_under_test.types import History, SamplingParams

_INF = float("inf")
_LARGEST = float(torch.finfo(torch.bfloat16).max)
_RAMP = tuple(0.5 * token for token in range(16))
_WARM = SamplingParams(temperature=0.9, seed=77)


def _numpy(logits: torch.Tensor, draws: Draws, noise: Noise, processors: Processors) -> Sampled:
    return sampler.sample_and_tell(logits.double().numpy(), draws, noise, processors)


SAMPLERS: dict[str, Sample] = {"numpy": _numpy, "torch": torch_sampler.sample_and_tell}

# Logits, parameters, and the tokens that alone can be drawn; None: any of those that the law names.
EDGES: dict[str, tuple[Sequence[float], SamplingParams, set[int] | None]] = {
    "ties everywhere": ((1.0,) * 16, _WARM, None),
    "ties everywhere, greedy": ((1.0,) * 16, SamplingParams(), {0}),
    "ties at the k-th place": ((2.0, 1.0, 1.0, 1.0), replace(_WARM, top_k=2), {0, 1}),
    "ties where p is reached": ((0.0,) * 4, replace(_WARM, top_p=0.5), {0, 1}),
    "all impossible but one": ((-_INF, -_INF, 0.5, -_INF), _WARM, {2}),
    "half impossible": ((-_INF, 1.0) * 4, _WARM, {1, 3, 5, 7}),
    "a single allowed token": (_RAMP, replace(_WARM, allowed_token_ids=(3,)), {3}),
    "a single allowed token, greedy": (_RAMP, SamplingParams(allowed_token_ids=(3,)), {3}),
    "k of 1": (_RAMP, replace(_WARM, top_k=1), {15}),
    "k of the vocabulary": (_RAMP, replace(_WARM, top_k=16), None),
    "k beyond the vocabulary": (_RAMP, replace(_WARM, top_k=10**9), None),
    "p next to 0": (_RAMP, replace(_WARM, top_p=5e-324), {15}),
    "p of 1": (_RAMP, replace(_WARM, top_p=1.0), None),
    "p next to 1": (_RAMP, replace(_WARM, top_p=1 - 2**-53), None),
    "min-p of 0": (_RAMP, replace(_WARM, min_p=0.0), None),
    "min-p of 1": ((1.0, 3.0, 3.0, 2.0), replace(_WARM, min_p=1.0), {1, 2}),
    "temperature 0": (_RAMP, SamplingParams(), {15}),
    "temperature next to 0": (_RAMP, SamplingParams(temperature=5e-324, seed=77), {15}),
    "temperature next to 0, of equals": ((3.0, 1.0, 3.0), SamplingParams(temperature=5e-324, seed=77), {0, 2}),
    "a temperature without bounds": (_RAMP, SamplingParams(temperature=1e300, seed=77), None),
    "the largest and the smallest of bfloat16": ((_LARGEST, -_LARGEST, _LARGEST, 0.0), _WARM, {0, 2}),
    "their difference, at a low temperature": ((-_LARGEST, _LARGEST, 1.0), SamplingParams(temperature=1e-3, seed=77), {1}),
}


@pytest.mark.parametrize("is_bfloat16", [False, True], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("name", SAMPLERS)
@pytest.mark.parametrize("edge", EDGES)
def test_an_edge_is_as_the_law_has_it(edge: str, name: str, is_bfloat16: bool) -> None:
    logits, params, due = EDGES[edge]
    row = np.array(logits, np.float32)
    row = as_bfloat16(row) if is_bfloat16 else row
    history = History((1, 2), (1,)) if params.needs_history else None
    cases = tuple(Case(edge, row, params, choice, 3, 2, history) for choice in range(12))
    rows = Rows(SAMPLERS[name])
    assert rows.judge(Batch(cases, is_bfloat16), is_coarse=False) is None
    assert rows.num_rows == len(cases)
    if due is not None:
        assert {law_of(case)[1].token for case in cases} <= due


@pytest.mark.parametrize("params", [SamplingParams(), _WARM], ids=["greedy", "warm"])
@pytest.mark.parametrize("name", SAMPLERS)
def test_a_row_without_a_possible_token_leads_to_token_0_and_changes_no_other_row(name: str, params: SamplingParams) -> None:
    logits = torch.tensor([_RAMP, (-_INF,) * 16, _RAMP])
    draws = (Draws([params] * num, range(num), [3] * num, [2] * num) for num in (3, 1))
    together, alone = (SAMPLERS[name](logits[: len(each.params)].clone(), each, PhiloxNoise(), {}) for each in draws)
    assert together.tokens[1] == 0
    assert together.tokens[0] == alone.tokens[0]
