"""Out of memory at the k-th allocation of a run, for every k: survivors have their tokens, and every block comes home."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import lru_cache

import pytest
import torch

from engine_under_test import Engine, EngineConfig, FinishReason, Request, SamplingParams
from engine_under_test.execution.attention import PagedTorch
from engine_under_test.execution.batch import Batch
from engine_under_test.execution.transformer import TransformerRunner
from engine_under_test.model.weights import LlamaConfig, tiny_random
from engine_under_test.seams import Memory, Space

WEIGHTS = tiny_random(LlamaConfig(32, 16, num_layers=1, num_heads=2, num_kv_heads=1, head_size=8, intermediate_size=24), 2)
REQUESTS = [
    Request("short", (3, 1, 4), SamplingParams(max_tokens=7)),
    Request("longer", tuple(range(9)), SamplingParams(max_tokens=4)),
    Request("two choices", tuple(range(5, 12)), SamplingParams(max_tokens=2, n=2)),
]
PLACES = {"depth 0": 1, "depth 1": 2}

Ends = Mapping[tuple[str, int], tuple[tuple[int, ...], FinishReason | None, str]]


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


class Refusing:
    """Memory that refuses what `refuses` says of the count of requests so far and the bytes."""

    def __init__(self, refuses: Callable[[int, int], bool] = lambda _count, _num_bytes: False) -> None:
        self.count = 0
        self.spaces: set[Space] = set()  # where it was asked for some
        self._refuses = refuses

    def admit(self, num_bytes: int, space: Space = Space.DEVICE) -> bool:
        assert num_bytes > 0
        self.spaces.add(space)
        self.count += 1
        return not self._refuses(self.count, num_bytes)


def new_engine(memory: Memory | None, num_plans: int, attention: PagedTorch | None = None) -> Engine:
    config = EngineConfig(
        num_blocks=16, block_size=4, max_tokens_per_step=8, max_num_seqs=4, vocab_size=32, max_plans_in_flight=num_plans
    )
    runner = TransformerRunner(WEIGHTS, config.num_blocks, config.block_size, memory=memory, attention=attention)
    engine = Engine(config, runner)
    for request in REQUESTS:
        assert engine.submit(request).is_accepted
    return engine


def drain(engine: Engine) -> Ends:
    """Each choice's tokens, end and message; everything has come home."""
    for _ in range(300):
        if not engine.has_work:
            break
        engine.step()
    assert not engine.has_work
    engine.poll()
    snapshot = engine.snapshot()
    assert sorted(snapshot.free) == list(range(1, snapshot.num_blocks + 1))
    left = (snapshot.reservations, snapshot.quarantined, snapshot.plans, snapshot.unsettled)
    assert not any(left), left
    ends: dict[tuple[str, int], tuple[tuple[int, ...], FinishReason | None, str]] = {}
    for output in engine.take_outputs():
        key = output.request_id, output.choice
        ends[key] = (ends.get(key, ((), None, ""))[0] + output.token_ids, output.finish_reason, output.message)
    return ends


@lru_cache(maxsize=2)
def without_fault(num_plans: int) -> tuple[Ends, int]:
    memory = Refusing()
    ends = drain(new_engine(memory, num_plans))
    assert memory.spaces == {Space.HOST, Space.DEVICE}
    return ends, memory.count


@pytest.mark.parametrize("num_plans", PLACES.values(), ids=PLACES.keys())
def test_one_refusal_at_any_allocation_changes_no_token(num_plans: int) -> None:
    expected, count = without_fault(num_plans)
    assert count > 20
    for k in range(1, count + 1):
        memory = Refusing(lambda asked, _num_bytes, k=k: asked == k)  # type: ignore[misc]  # k is bound by its default
        engine = new_engine(memory, num_plans)
        assert drain(engine) == expected, f"allocation {k}"
        assert engine.counters.abandoned >= 1


@pytest.mark.parametrize("num_plans", PLACES.values(), ids=PLACES.keys())
def test_refusal_from_any_allocation_on_ends_what_is_left_with_the_reason(num_plans: int) -> None:
    expected, count = without_fault(num_plans)
    for k in range(1, count + 1):
        memory = Refusing(lambda asked, _num_bytes, k=k: asked >= k)  # type: ignore[misc]  # k is bound by its default
        ends = drain(new_engine(memory, num_plans))
        assert ends.keys() == expected.keys()
        for key, (tokens, reason, message) in ends.items():
            if reason is FinishReason.ERROR:
                assert re.search("out of (device|host) memory", message)
                assert expected[key][0][: len(tokens)] == tokens
            else:
                assert (tokens, reason, message) == expected[key]
        assert any(reason is FinishReason.ERROR for _, reason, _ in ends.values())


def test_a_step_too_large_for_the_memory_is_run_by_half() -> None:
    """Logits of more than two rows are always refused: everybody comes to the end all the same."""
    expected, _ = without_fault(1)
    memory = Refusing(lambda _asked, num_bytes: num_bytes in (3 * 32 * 4, 4 * 32 * 4))
    engine = new_engine(memory, 1)
    assert drain(engine) == expected
    assert engine.counters.abandoned > 1


def test_a_request_that_never_fits_ends_and_the_rest_is_unharmed() -> None:
    expected, _ = without_fault(1)
    engine = new_engine(Refusing(lambda _asked, num_bytes: num_bytes > 3_600), 1)
    big = Request("big", (7,) * 40, SamplingParams(max_tokens=2))
    assert engine.submit(big).is_accepted
    ends = dict(drain(engine))
    _, reason, message = ends.pop(("big", 0))
    assert ends == expected
    assert reason is FinishReason.ERROR
    assert "attention of layer 0" in message


class Exhausted(PagedTorch):
    """Attention whose k-th call finds the device's memory full, as torch reports it."""

    def __init__(self, k: int) -> None:
        super().__init__()
        self._left = k

    def attend(self, queries: torch.Tensor, key_cache: torch.Tensor, value_cache: torch.Tensor, batch: Batch) -> torch.Tensor:
        self._left -= 1
        if not self._left:
            raise torch.OutOfMemoryError("tried to allocate 2 GiB")
        return super().attend(queries, key_cache, value_cache, batch)


@pytest.mark.parametrize("k", [1, 2, 4], ids=lambda k: f"attention call {k}")
def test_the_device_s_own_refusal_is_treated_alike(k: int) -> None:
    engine = new_engine(None, 1, Exhausted(k))
    assert drain(engine) == without_fault(1)[0]
    assert engine.counters.abandoned == 1
