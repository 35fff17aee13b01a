"""The simulated device keeps every order that streams and waits give, no other, and its detector knows them from luck."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from math import comb

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_under_test.errors import ProtocolError
from engine_under_test.events import DeviceChoice, Race, RaceKind
from engine_under_test.execution.schedule import TURN, Chance, Chooser, Delays, Priorities
from engine_under_test.execution.simulated_device import SimulatedDevice, SimulatedFence
from engine_under_test.seams import DeviceOp, Page, Stream

A, B = Page("kv", 1), Page("kv", 2)
HOST_PAGE = Page("pinned", 0)
COMPUTE, COPY_IN, COPY_OUT, TRANSFER = Stream
SLOW = 50 * TURN


class Lab:
    """A device, and what ran on it."""

    def __init__(self, chooser: Chooser | None = None) -> None:
        self.device = SimulatedDevice(chooser)
        self.ran: list[str] = []

    def put(
        self,
        stream: Stream,
        name: str,
        reads: Sequence[Page] = (),
        writes: Sequence[Page] = (),
        after: Sequence[SimulatedFence] = (),
    ) -> SimulatedFence:
        op = DeviceOp(name, frozenset(reads), frozenset(writes), lambda: self.ran.append(name))
        return self.device.submit_to(stream, op, after)


def slow(*choices: tuple[Stream, int]) -> Delays:
    return Delays({("", stream, kth): (SLOW, 0) for stream, kth in choices})


# -- what runs when --------------------------------------------------------------------------------------------


def test_a_stream_runs_in_order_however_late_its_head() -> None:
    lab = Lab(slow((COMPUTE, 0)))
    lab.put(COMPUTE, "first")
    lab.device.wait(lab.put(COMPUTE, "second"))
    assert lab.ran == ["first", "second"]


def test_another_stream_does_not_wait_unless_it_is_told_to() -> None:
    lab = Lab(slow((COMPUTE, 0)))
    first = lab.put(COMPUTE, "first")
    lab.device.wait(lab.put(COPY_IN, "beside"))
    assert lab.ran == ["beside"]
    lab.device.wait(lab.put(COPY_IN, "behind", after=[first]))
    assert lab.ran == ["beside", "first", "behind"]


def test_the_host_learns_late_of_what_the_device_has_done() -> None:
    lab = Lab(Delays({("", COPY_OUT, 0): (0, 5)}))
    fence = lab.put(COPY_OUT, "download")
    assert lab.ran == ["download"]
    assert not fence.has_passed()
    lab.device.wait(fence)
    assert fence.has_passed()


def test_of_two_downloads_the_later_may_be_seen_first() -> None:
    lab = Lab(Delays({("", COPY_OUT, 0): (0, 9)}))
    first, second = lab.put(COPY_OUT, "first"), lab.put(COPY_OUT, "second")
    assert second.has_passed()
    assert not first.has_passed()


def test_a_fence_is_behind_every_stream() -> None:
    lab = Lab(slow((TRANSFER, 0)))
    lab.put(TRANSFER, "store")
    lab.put(COMPUTE, "rows")
    fence = lab.device.fence()
    assert lab.ran == ["rows"]
    assert not fence.has_passed()
    lab.device.wait(fence)
    assert lab.ran == ["rows", "store"]


def test_an_error_is_raised_to_whoever_waits_for_it() -> None:
    lab = Lab()

    def fail() -> None:
        raise ValueError("bad address")

    fence = lab.device.submit_to(COMPUTE, DeviceOp("rows", frozenset(), frozenset(), fail))
    with pytest.raises(ValueError, match="bad address"):
        lab.device.wait(fence)


def test_waiting_for_what_never_comes_is_said() -> None:
    lab = Lab()
    first = lab.put(COMPUTE, "first")
    lab.device.wait(first)
    lab.device.chooser = Never()
    with pytest.raises(ProtocolError, match="waits for ever: second on copy_in"):
        lab.device.wait(lab.put(COPY_IN, "second"))


class Never(Delays):
    def choose(self, cause: str, stream: Stream, kth: int) -> tuple[int, int]:
        del cause, stream, kth
        return 10**12, 0


def test_what_is_dropped_never_runs_and_nobody_waits_for_it() -> None:
    lab = Lab(slow((COMPUTE, 0)))
    lost, kept = lab.put(COMPUTE, "lost", writes=[A]), lab.put(COMPUTE, "kept")
    lab.device.drop(lambda op: op.name == "lost")
    lab.device.wait(lost)
    lab.device.wait(kept)
    assert lab.ran == ["kept"]
    lab.put(COPY_IN, "fill", writes=[A])
    assert lab.device.take_races() == ()


# -- races -----------------------------------------------------------------------------------------------------


def race(kind: RaceKind, first: str, one: str, second: str, other: str, page: Page = A) -> Race:
    return Race(kind, page.buffer, page.unit, first, one, second, other)


def test_a_read_beside_the_write_it_needs_is_a_race() -> None:
    lab = Lab()
    lab.put(COPY_IN, "copy", writes=[A])
    lab.put(COMPUTE, "rows", reads=[A])
    assert lab.device.take_races() == (race(RaceKind.READ_AFTER_WRITE, "copy", "copy_in", "rows", "compute"),)


def test_two_writes_beside_each_other_are_a_race() -> None:
    lab = Lab()
    lab.put(COMPUTE, "rows", writes=[A])
    lab.put(COPY_IN, "fill", writes=[A])
    assert lab.device.take_races() == (race(RaceKind.WRITE_AFTER_WRITE, "rows", "compute", "fill", "copy_in"),)


def test_reuse_beside_a_read_is_a_race() -> None:
    lab = Lab()
    lab.put(TRANSFER, "store", reads=[A])
    lab.put(COPY_IN, "fill", writes=[A])
    assert lab.device.take_races() == (race(RaceKind.WRITE_AFTER_READ, "store", "transfer", "fill", "copy_in"),)


def test_a_read_is_not_forgotten_behind_a_read_of_another_stream() -> None:
    lab = Lab()
    lab.put(TRANSFER, "store", reads=[A])
    rows = lab.put(COMPUTE, "rows", reads=[A])
    lab.put(COPY_IN, "fill", writes=[A], after=[rows])
    assert [found.first for found in lab.device.take_races()] == ["store"]


def test_a_host_that_writes_what_is_being_uploaded_races() -> None:
    lab = Lab()
    lab.put(COPY_IN, "upload", reads=[HOST_PAGE])
    lab.device.host_touches(writes=[HOST_PAGE])
    assert [(found.kind, found.second_thread) for found in lab.device.take_races()] == [(RaceKind.WRITE_AFTER_READ, "host")]


def test_a_host_that_reads_before_it_has_seen_the_download_races() -> None:
    lab = Lab()
    lab.put(COPY_OUT, "download", writes=[HOST_PAGE])
    assert lab.ran == ["download"], "it has ended in fact, but nobody knows"
    lab.device.host_touches(reads=[HOST_PAGE])
    assert [found.kind for found in lab.device.take_races()] == [RaceKind.READ_AFTER_WRITE]


def test_luck_is_no_order() -> None:
    lab = Lab()
    first = lab.put(COMPUTE, "rows", writes=[A])
    assert first.is_done()
    lab.put(COPY_IN, "fill", writes=[A])
    assert len(lab.device.take_races()) == 1


SYNCHRONISED: dict[str, Callable[[Lab], None]] = {}


def synchronised(how: Callable[[Lab], None]) -> Callable[[Lab], None]:
    SYNCHRONISED[how.__name__.replace("_", " ")] = how
    return how


@synchronised
def one_stream(lab: Lab) -> None:
    lab.put(COMPUTE, "rows", reads=[B], writes=[A])
    lab.put(COMPUTE, "rows", reads=[A], writes=[B])


@synchronised
def a_wait_for_the_fence(lab: Lab) -> None:
    fence = lab.put(COMPUTE, "rows", writes=[A])
    lab.put(COPY_OUT, "store", reads=[A], after=[fence])


@synchronised
def a_wait_through_a_third_stream(lab: Lab) -> None:
    one = lab.put(COMPUTE, "rows", writes=[A])
    two = lab.put(COPY_OUT, "download", after=[one])
    lab.put(TRANSFER, "store", reads=[A], after=[two])


@synchronised
def what_stands_behind_a_wait(lab: Lab) -> None:
    fence = lab.put(COMPUTE, "rows", writes=[A])
    lab.put(COPY_IN, "upload", after=[fence])
    lab.put(COPY_IN, "fill", writes=[A])


@synchronised
def an_end_that_the_host_saw(lab: Lab) -> None:
    lab.device.wait(lab.put(COMPUTE, "rows", writes=[A]))
    lab.put(COPY_IN, "fill", writes=[A])


@synchronised
def an_end_that_the_host_polled(lab: Lab) -> None:
    fence = lab.put(COMPUTE, "rows", reads=[A])
    if not any(fence.has_passed() for _ in range(20)):
        lab.device.wait(fence)  # a host of the highest priority polls in vain
    lab.put(COPY_IN, "fill", writes=[A])


@synchronised
def a_fence_behind_everything(lab: Lab) -> None:
    lab.put(COMPUTE, "rows", reads=[A])
    lab.put(TRANSFER, "store", reads=[A])
    lab.put(COPY_IN, "fill", writes=[A], after=[lab.device.fence()])


@synchronised
def a_submission_after_the_host_wrote(lab: Lab) -> None:
    lab.device.host_touches(writes=[HOST_PAGE])
    lab.put(COPY_IN, "upload", reads=[HOST_PAGE])


@synchronised
def reads_beside_each_other(lab: Lab) -> None:
    lab.put(COMPUTE, "rows", reads=[A])
    lab.put(TRANSFER, "store", reads=[A])
    lab.device.host_touches(reads=[A])


@pytest.mark.parametrize("how", SYNCHRONISED)
@pytest.mark.parametrize("chooser", [Delays, lambda: Chance(1), lambda: Priorities(1, 8)], ids=["delays", "chance", "pct"])
def test_what_is_ordered_is_no_race(how: str, chooser: Callable[[], Chooser]) -> None:
    lab = Lab(chooser())
    SYNCHRONISED[how](lab)
    assert lab.device.take_races() == ()


# -- schedules -------------------------------------------------------------------------------------------------

WORK = st.lists(
    st.tuples(st.sampled_from(Stream), st.sets(st.integers(0, 3), max_size=2), st.integers(0, 3)), min_size=1, max_size=24
)


def run_work(work: Sequence[tuple[Stream, set[int], int]], chooser: Chooser, choices: Sequence[DeviceChoice] = ()) -> Lab:
    """Each piece waits for the last piece on some other streams; now and then the host waits."""
    lab = Lab(chooser)
    lab.device.begin("work")
    if isinstance(chooser, Delays):
        chooser.expect("work", choices)
    newest: dict[Stream, SimulatedFence] = {}
    for number, (stream, waits, host) in enumerate(work):
        after = [newest[other] for other in (list(Stream)[each] for each in waits) if other in newest]
        newest[stream] = lab.put(stream, f"{number}", after=after)
        if host == 0:
            lab.device.wait(newest[stream])
    lab.device.synchronize()
    return lab


@given(WORK, st.integers(0, 1000), st.booleans())
def test_whatever_ran_can_be_written_down_and_done_again(
    work: list[tuple[Stream, set[int], int]], seed: int, is_pct: bool
) -> None:
    chooser: Chooser = Priorities(seed, 24) if is_pct else Chance(seed)
    first = run_work(work, chooser)
    again = run_work(work, Delays(), first.device.take_record()["work"])
    assert again.ran == first.ran


@given(WORK, st.integers(0, 1000), st.booleans())
def test_no_chooser_breaks_an_order(work: list[tuple[Stream, set[int], int]], seed: int, is_pct: bool) -> None:
    lab = run_work(work, Priorities(seed, 24) if is_pct else Chance(seed))
    place = {name: number for number, name in enumerate(lab.ran)}
    assert len(place) == len(work)
    newest: dict[Stream, int] = {}
    for number, (stream, waits, _host) in enumerate(work):
        before = [newest[other] for other in {stream, *(list(Stream)[each] for each in waits)} if other in newest]
        assert all(place[f"{each}"] < place[f"{number}"] for each in before)
        newest[stream] = number


def test_a_choice_belongs_to_its_cause_alone() -> None:
    chooser = Chance(3)
    alone = chooser.choose("op 7", COMPUTE, 0)
    chooser.choose("op 6", COMPUTE, 0)
    assert chooser.choose("op 7", COMPUTE, 0) == alone
    drawn = {Chance(seed).choose("op 7", COMPUTE, 0) for seed in range(40)}
    assert len(drawn) > 5


def _ordering_bug_found(seed: int, num_steps: int, depth: int) -> bool:
    """Whether the last of eight operations on one stream is overtaken by one that was put on another behind them."""
    lab = Lab(Priorities(seed, num_steps, depth))
    for number in range(8):
        lab.put(COMPUTE, f"{number}")
    lab.device.wait(lab.put(COPY_IN, "overtakes"))
    lab.device.synchronize()
    return lab.ran.index("overtakes") < lab.ran.index("7")


def test_priorities_meet_a_bug_at_least_as_often_as_their_bound() -> None:
    runs, steps, depth = 200, 24, 1
    bound = Priorities(0, steps, depth).bound
    assert bound == 1 / 5
    found = sum(_ordering_bug_found(seed, steps, depth) for seed in range(runs))
    # Had each run found it with the bound's probability only, so few finds would be rarer than one in a million.
    tail = sum(comb(runs, k) * bound**k * (1 - bound) ** (runs - k) for k in range(found + 1))
    assert tail > 1e-6, f"found in {found} of {runs} runs"


def test_a_change_of_priority_happens_where_it_was_drawn() -> None:
    """With depth 2 a thread falls behind all others at one place of the run: the stream's order is then cut there."""
    cuts = set()
    for seed in range(300):
        lab = Lab(Priorities(seed, 12, 2))
        for number in range(4):
            lab.put(COMPUTE, f"{number}")
        for number in range(4):
            lab.put(COPY_IN, f"in {number}")
        lab.device.synchronize()
        streams = ["in" if name.startswith("in") else "compute" for name in lab.ran]
        cuts.add(tuple(number for number, (one, other) in enumerate(pairwise(streams)) if one != other))
    assert cuts == {(3,), (0, 4), (1, 5), (2, 6)}
