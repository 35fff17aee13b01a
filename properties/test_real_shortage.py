"""A device that is really out of memory in the middle of a step: run by half, or ended with the reason, and the rest unharmed.

On CUDA the allocator's own limit (`torch.cuda.set_per_process_memory_fraction`) is drawn so that half of a step fits and the
whole does not. Without a device the same exception is raised in the place of the largest allocation.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import pytest
import torch
from torch.nn import functional

from engine_under_test import Engine, EngineConfig, FinishReason, Request, SamplingParams
from engine_under_test.execution.attention import PagedTorch
from engine_under_test.execution.transformer import TransformerRunner
from engine_under_test.model.llama import Product
from engine_under_test.model.weights import LlamaConfig, LlamaWeights, tiny_random

WHY_NOT = "needs a CUDA device; on a machine that has one say: pytest -m gpu properties/test_real_shortage.py"
ROWS = 16
CONFIG = EngineConfig(num_blocks=96, block_size=4, max_tokens_per_step=128, max_num_seqs=ROWS, vocab_size=64)
WIDE = EngineConfig(num_blocks=96, block_size=4, max_tokens_per_step=128, max_num_seqs=ROWS, vocab_size=400_000)

Ends = Mapping[str, tuple[tuple[int, ...], FinishReason | None, str]]


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def serve(config: EngineConfig, weights: LlamaWeights, product: Product | None = None) -> tuple[Ends, Engine]:
    """Sixteen greedy requests, to their ends; everything has come home."""
    runner = TransformerRunner(weights, config.num_blocks, config.block_size, attention=PagedTorch(), product=product)
    engine = Engine(config, runner)
    for number in range(ROWS):
        assert engine.submit(Request(f"r{number}", (number, 3, number + 7), SamplingParams(max_tokens=4))).is_accepted
    tokens: dict[str, tuple[int, ...]] = {}
    ends: dict[str, tuple[tuple[int, ...], FinishReason | None, str]] = {}
    for _ in range(300):
        if not engine.has_work:
            break
        engine.step()
        for output in engine.take_outputs():
            tokens[output.request_id] = tokens.get(output.request_id, ()) + output.token_ids
            if output.finish_reason is not None:
                ends[output.request_id] = tokens[output.request_id], output.finish_reason, output.message
    engine.poll()
    left = engine.snapshot()
    assert (left.quarantined, left.reservations, left.plans, left.running, left.waiting) == ({}, {}, (), (), ())
    return ends, engine


def weights_of(vocab_size: int, place: str) -> LlamaWeights:
    return tiny_random(LlamaConfig(vocab_size, 16, 1, 2, 1, 8, 24), 2).to(device=torch.device(place))


def short_of(most_rows: int) -> Product:
    """Products with more rows than that fail as a device's do."""

    def product(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        if len(w) == CONFIG.vocab_size and len(x) > most_rows:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 24.00 MiB")
        return functional.linear(x, w)

    return product


@pytest.mark.parametrize("most_rows", [8, 12, 15])
def test_a_step_of_which_half_fits_is_run_by_half(most_rows: int) -> None:
    weights = weights_of(CONFIG.vocab_size, "cpu")
    plain, _ = serve(CONFIG, weights)
    ends, engine = serve(CONFIG, weights, short_of(most_rows))
    assert ends == plain
    assert engine.counters.abandoned >= 1


def test_what_never_fits_ends_with_the_reason() -> None:
    ends, _ = serve(CONFIG, weights_of(CONFIG.vocab_size, "cpu"), short_of(0))
    assert len(ends) == ROWS
    for _, reason, message in ends.values():
        assert reason is FinishReason.ERROR
        assert "out of device memory: CUDA out of memory" in message


# The real one


@contextmanager
def limited(num_bytes: int) -> Iterator[None]:
    """The allocator gives no more than that in all."""
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(num_bytes / total)
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
        torch.cuda.empty_cache()


def most_reserved(config: EngineConfig, weights: LlamaWeights) -> tuple[Ends, int]:
    """What the requests come to, and the most that the allocator took from the device meanwhile."""
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    ends, _ = serve(config, weights)
    return ends, torch.cuda.max_memory_reserved()


def by_half(config: EngineConfig) -> EngineConfig:
    return EngineConfig(
        num_blocks=config.num_blocks,
        block_size=config.block_size,
        max_tokens_per_step=config.max_tokens_per_step,
        max_num_seqs=config.max_num_seqs // 2,
        vocab_size=config.vocab_size,
    )


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason=WHY_NOT)
def test_a_device_whose_allocator_has_room_for_half_a_step_serves_everybody() -> None:
    weights = weights_of(WIDE.vocab_size, "cuda")
    plain, whole = most_reserved(WIDE, weights)
    _, half = most_reserved(by_half(WIDE), weights)
    assert whole > half + (4 << 20), "the limit would lie within what the allocator rounds"
    with limited((whole + half) // 2):
        ends, engine = serve(WIDE, weights)
    assert engine.counters.abandoned >= 1, "the device was never short: nothing was shown"
    assert ends == plain


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason=WHY_NOT)
def test_a_device_whose_allocator_has_room_for_nothing_ends_everybody_with_the_reason() -> None:
    weights = weights_of(WIDE.vocab_size, "cuda")
    torch.cuda.empty_cache()
    with limited(torch.cuda.memory_reserved() + (4 << 20)):
        ends, _ = serve(WIDE, weights)
    assert len(ends) == ROWS
    assert all(reason is FinishReason.ERROR and "out of device memory" in message for _, reason, message in ends.values())
