"""CUDA streams behind the device seam: the same order, the same tokens, whatever is held up."""

from __future__ import annotations

import pytest
import torch

from engine_under_test import Engine, EngineConfig, Request, SamplingParams
from engine_under_test.errors import ConfigError
from engine_under_test.execution.cuda_device import CudaDevice
from engine_under_test.execution.transformer import TransformerRunner
from engine_under_test.model.weights import LlamaConfig, LlamaWeights, tiny_random
from engine_under_test.seams import DeviceOp, Stream

needs_cuda = pytest.mark.skipif(
    not torch.cuda.is_available(),
    reason="needs a CUDA device; on a machine that has one say: pytest -m gpu properties/test_cuda_device.py",
)
CYCLES = 2_000_000  # about a millisecond


def test_without_a_cuda_device_it_is_refused() -> None:
    with pytest.raises(ConfigError, match="need a CUDA device, found cpu"):
        CudaDevice(torch.device("cpu"))


@pytest.mark.gpu
@needs_cuda
@pytest.mark.parametrize("held", [None, *Stream], ids=lambda held: "nothing held up" if held is None else f"{held} held up")
def test_whatever_is_held_up_the_tokens_are_the_same(held: Stream | None) -> None:
    place = torch.device("cuda")
    weights = tiny_random(LlamaConfig(97, 64, 2, 4, 2, 64, 96, ties_head=True), seed=3).to(device=place)

    def spin(_op: DeviceOp, stream: Stream) -> tuple[int, int]:
        return (CYCLES, CYCLES) if stream is held else (0, 0)

    assert _tokens(weights, CudaDevice(place, spin), 2) == _tokens(weights, None, 0)


def _tokens(weights: LlamaWeights, device: CudaDevice | None, depth: int) -> list[tuple[str, int, tuple[int, ...]]]:
    config = EngineConfig(num_blocks=16, block_size=16, max_tokens_per_step=32, vocab_size=97, max_plans_in_flight=depth + 1)
    engine = Engine(config, TransformerRunner(weights, 16, 16, device=device))
    for number in range(3):
        prompt = tuple((7 * number + place) % 97 for place in range(20 + number))
        engine.submit(Request(f"r{number}", prompt, SamplingParams(max_tokens=12, temperature=0.5 * number, seed=number)))
    while engine.has_work:
        engine.step()
    return sorted((each.request_id, each.index, each.token_ids) for each in engine.take_outputs())


@pytest.mark.gpu
@needs_cuda
def test_a_wait_for_a_fence_orders_streams() -> None:
    place = torch.device("cuda")
    device = CudaDevice(place, lambda _op, stream: (20 * CYCLES, 0) if stream is Stream.COMPUTE else (0, 0))
    source, target = torch.zeros(1, device=place), torch.zeros(1, device=place)

    def op(name: str, run: object) -> DeviceOp:
        return DeviceOp(name, frozenset(), frozenset(), run)  # type: ignore[arg-type]  # tensor methods return the tensor

    written = device.submit_to(Stream.COMPUTE, op("write", lambda: source.fill_(5.0)))
    assert not written.has_passed()
    copied = device.submit_to(Stream.COPY_OUT, op("copy", lambda: target.copy_(source)), after=(written,))
    device.wait(copied)
    assert target.item() == 5.0
