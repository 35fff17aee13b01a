"""Overlapped scheduling on a device that runs late: the same tokens at every depth and in every order, nothing left over."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine_under_test import Engine, EngineConfig, FingerprintRunner, Request, SamplingParams
from engine_under_test.execution.runner import Runner
from engine_under_test.execution.schedule import Chance, Chooser, Delays, Priorities
from engine_under_test.execution.simulated_device import SimulatedDevice
from engine_under_test.execution.transformer import TransformerRunner
from engine_under_test.model.weights import LlamaConfig, tiny_random
from engine_under_test.seams import Space
from engine_under_test.types import FinishReason

VOCAB = 16
_STEPS = 4000

Told = dict[tuple[str, int], tuple[list[int], FinishReason | None]]


class Late:
    """An engine over a simulated device, and what its users were told."""

    def __init__(
        self,
        depth: int,
        chooser: Chooser,
        num_blocks: int = 10,
        runner: Runner | None = None,
        device: SimulatedDevice | None = None,
    ) -> None:
        config = EngineConfig(
            num_blocks=num_blocks,
            block_size=4,
            max_tokens_per_step=8,
            max_num_seqs=4,
            vocab_size=VOCAB,
            max_plans_in_flight=depth + 1,
        )
        self.device = SimulatedDevice(chooser) if device is None else device
        runner = FingerprintRunner(num_blocks, 4, VOCAB, device=self.device) if runner is None else runner
        self.engine = Engine(config, runner)
        self.told: Told = {}
        self.in_flight: set[int] = set()

    def step(self) -> None:
        self.device.turn()
        self.engine.step()
        self.in_flight.add(len(self.engine.plans_in_flight))
        for output in self.engine.take_outputs():
            tokens, reason = self.told.get((output.request_id, output.choice), ([], None))
            assert reason is None, "nothing after the end"
            assert output.index == len(tokens)
            self.told[output.request_id, output.choice] = ([*tokens, *output.token_ids], output.finish_reason)

    def drain(self) -> None:
        for _ in range(_STEPS):
            if not self.engine.has_work and not self.engine.plans_in_flight:
                break
            self.step()
        else:
            pytest.fail("it does not come to an end")
        self.device.synchronize()
        for _ in range(10):  # the host may learn late that fences have passed
            self.device.turn()
            self.engine.poll()


SAMPLING = st.builds(
    lambda most, least, temperature, seed, stops, n: SamplingParams(
        max_tokens=most,
        min_tokens=min(least, most),
        temperature=temperature,
        seed=seed,
        stop_token_ids=tuple(sorted(stops)),
        n=n,
    ),
    st.integers(1, 10),
    st.integers(0, 4),
    st.sampled_from((0.0, 1.0)),
    st.integers(0, 3),
    st.sets(st.integers(0, VOCAB - 1), max_size=4),
    st.sampled_from((1, 1, 1, 2)),
)
PROMPTS = st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=14)
REQUESTS = st.lists(st.tuples(PROMPTS, SAMPLING, st.integers(0, 4)), min_size=1, max_size=5)
CHOOSERS: dict[str, Callable[[int], Chooser]] = {
    "at once": lambda _seed: Delays(),
    "by chance": Chance,
    "by priorities": lambda seed: Priorities(seed, 400),
}


def tell(work: list[tuple[list[int], SamplingParams, int]], late: Late, aborted: int | None = None) -> Told:
    """Each request comes some steps after the one before; one of them perhaps leaves after three more."""
    for number, (prompt, sampling, gap) in enumerate(work):
        for _ in range(gap):
            late.step()
        answer = late.engine.submit(Request(f"r{number}", tuple(prompt), sampling))
        assert answer.is_accepted, answer.message
        if aborted == number:
            for _ in range(3):
                late.step()
            late.engine.abort(f"r{number}")
    late.drain()
    return late.told


@settings(max_examples=60, deadline=None)
@given(REQUESTS, st.sampled_from(sorted(CHOOSERS)), st.integers(1, 2), st.integers(0, 500))
def test_depth_and_order_change_no_token(
    work: list[tuple[list[int], SamplingParams, int]], chooser: str, depth: int, seed: int
) -> None:
    plain = tell(work, Late(0, Delays()))
    late = Late(depth, CHOOSERS[chooser](seed))
    assert tell(work, late) == plain
    assert late.device.take_races() == ()


@settings(max_examples=40, deadline=None)
@given(REQUESTS, st.integers(0, 4), st.integers(0, 2), st.integers(0, 500))
def test_late_ends_leak_nothing(work: list[tuple[list[int], SamplingParams, int]], aborted: int, depth: int, seed: int) -> None:
    late = Late(depth, Chance(seed))
    tell(work, late, aborted % len(work))
    snapshot = late.engine.snapshot()
    assert snapshot.plans == snapshot.unsettled == ()
    assert not snapshot.reservations
    assert not snapshot.quarantined
    assert len(set(snapshot.free)) == len(snapshot.free) == snapshot.num_blocks
    assert late.device.take_races() == ()


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_plans_are_made_before_results_are_read(depth: int) -> None:
    late = Late(depth, Delays(), num_blocks=32)
    work = [([1, 2, 3], SamplingParams(max_tokens=12), 0), ([4, 5], SamplingParams(max_tokens=12), 0)]
    tell(work, late)
    assert max(late.in_flight) == depth
    assert all(len(tokens) == 12 for tokens, _reason in late.told.values())


def test_an_end_found_late_ends_there_and_its_later_plan_is_dropped() -> None:
    greedy = SamplingParams(max_tokens=8)
    tokens = tell([([3, 1, 2], greedy, 0)], Late(0, Delays()))["r0", 0][0]
    stop = tokens[2]
    first = tokens.index(stop)
    stopping = SamplingParams(max_tokens=8, stop_token_ids=(stop,))
    late = Late(2, Delays())
    told = tell([([3, 1, 2], stopping, 0)], late)
    assert told["r0", 0] == (tokens[: first + 1], FinishReason.STOP)
    assert late.engine.counters.dropped_rows > 0, "plans behind the end were launched before it was known"


@pytest.mark.parametrize("depth", [0, 1, 2])
@pytest.mark.parametrize("chooser", sorted(CHOOSERS))
def test_a_language_model_on_streams_says_the_same(depth: int, chooser: str) -> None:
    config = LlamaConfig(VOCAB, 32, 2, 2, 1, 16, 48, ties_head=True)
    weights = tiny_random(config, seed=5)
    work = [
        ([3, 1, 2, 7, 7, 1], SamplingParams(max_tokens=9), 0),
        ([3, 1, 2, 7, 5], SamplingParams(max_tokens=6, temperature=1.0, seed=3), 1),
        ([9] * 11, SamplingParams(max_tokens=7, n=2), 2),
    ]

    def late(depth: int, chooser: Chooser) -> Late:
        device = SimulatedDevice(chooser)
        return Late(depth, chooser, runner=TransformerRunner(weights, 10, 4, device=device), device=device)

    plain = tell(work, late(0, Delays()))
    run = late(depth, CHOOSERS[chooser](7))
    assert tell(work, run) == plain
    assert run.device.num_run > 30
    assert run.device.take_races() == ()


class Refusing:
    """Memory that refuses the k-th allocation, or all from the k-th on."""

    def __init__(self, kth: int, is_for_good: bool = False) -> None:
        self.kth, self.is_for_good, self.num_asked, self.num_refused = kth, is_for_good, 0, 0
        self.spaces: set[Space] = set()  # where it was asked for some

    def admit(self, num_bytes: int, space: Space = Space.DEVICE) -> bool:
        self.spaces.add(space)
        assert num_bytes > 0
        self.num_asked += 1
        refuses = self.num_asked >= self.kth if self.is_for_good else self.num_asked == self.kth
        self.num_refused += refuses
        return not refuses


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_whatever_allocation_is_refused_nobody_is_told_another_token(depth: int) -> None:
    work = [
        ([1, 2, 3, 4, 5], SamplingParams(max_tokens=4), 0),
        ([1, 2, 9], SamplingParams(max_tokens=3, temperature=1.0, seed=2), 1),
        ([7, 7], SamplingParams(max_tokens=3, n=2), 0),
    ]

    def told(kth: int, is_for_good: bool) -> tuple[Told, Refusing]:
        memory, device = Refusing(kth, is_for_good), SimulatedDevice(Chance(kth))
        late = Late(depth, Delays(), runner=FingerprintRunner(10, 4, VOCAB, device=device, memory=memory), device=device)
        found = tell(work, late)
        assert not late.engine.snapshot().quarantined
        assert device.take_races() == ()
        return found, memory

    plain, counted = told(10**6, False)
    assert counted.num_asked >= 20
    assert counted.spaces == set(Space)
    for kth in range(1, counted.num_asked + 1):
        once, memory = told(kth, False)
        assert memory.num_refused == 1
        assert once == plain, "one refusal is tried again"
        for_good, memory = told(kth, True)
        for name, (tokens, reason) in for_good.items():
            assert reason is FinishReason.ERROR or (tokens, reason) == plain[name]
            assert tokens == plain[name][0][: len(tokens)]
