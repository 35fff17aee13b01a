"""Accesses by the streams of a device and by the host: ordered, and declared (AS-1, AS-2, AS-5, KV-3, KV-10)."""

from __future__ import annotations

from typing import Final

from engine_under_test.events import Race, RaceKind
from properties.invariants.predicate import Predicate, predicate, violation
from properties.moment import Moment
from properties.verdict import Violation

KV: Final = "kv"  # the buffer whose pages are blocks
HOST: Final = "host"  # as `Race` names it


def buffers_keep_still_while_they_are_read(moment: Moment) -> Violation | None:
    """AS-1: a staging buffer is not written, by the host or by a stream, before everyone who reads what it holds is known to
    have ended.

    Source: CUDA Runtime API, "API synchronization behavior": asynchronous copies from pinned memory return before they end.
    """
    return _first("AS-1", moment, RaceKind.WRITE_AFTER_READ, is_kv=False)


def reads_follow_the_writes_they_need(moment: Moment) -> Violation | None:
    """AS-2: whoever reads a page is ordered after its last write.

    Source: Lamport, Time, Clocks, and the Ordering of Events in a Distributed System, CACM 1978.
    """
    return _first("AS-2", moment, RaceKind.READ_AFTER_WRITE)


def writes_of_a_page_are_ordered(moment: Moment) -> Violation | None:
    """KV-3: of two writes of one page, on whatever streams, one is ordered after the other.

    Source: as AS-2.
    """
    return _first("KV-3", moment, RaceKind.WRITE_AFTER_WRITE)


def reuse_follows_every_use(moment: Moment) -> Violation | None:
    """KV-10: a block is written anew only after everyone who read what it held.

    Source: Flanagan and Freund, FastTrack: Efficient and Precise Dynamic Race Detection, PLDI 2009.
    """
    return _first("KV-10", moment, RaceKind.WRITE_AFTER_READ, is_kv=True)


def operations_touch_what_they_declared(moment: Moment) -> Violation | None:
    """AS-5: an instrumented store saw no operation read or write a page outside of its declaration.

    Source: engine_under_test/seams.py, DeviceOp.
    """
    for op, verb, buffer, units in moment.misdeclared or ():
        places = ", ".join(map(str, units))
        return violation("AS-5", op, f"{verb} {_page(buffer, places)}", "only pages that it declared")
    return None


def _first(identifier: str, moment: Moment, kind: RaceKind, is_kv: bool | None = None) -> Violation | None:
    for race in moment.races or ():
        if race.kind is kind and (is_kv is None or is_kv is (race.buffer == KV)):
            found = f"{race.second} on {race.second_thread} and {race.first} on {race.first_thread}, in any order: {kind.value}"
            facts = (_missing_edge(race), *_submissions(race))
            return violation(identifier, _page(race.buffer, str(race.unit)), found, "one after the other", *facts)
    return None


def _submissions(race: Race) -> tuple[str, ...]:
    """Where in the story the two come from, if that is known: operations are counted from 1 there."""
    accesses = ((race.first, race.first_thread, race.first_cause), (race.second, race.second_thread, race.second_cause))
    known = [(name, thread, int(cause) + 1) for name, thread, cause in accesses if cause.isdecimal()]
    return tuple([_submission(*each) for each in known])


def _submission(name: str, thread: str, number: int) -> str:
    return (
        f"the host touches it in operation {number}" if thread == HOST else f"{name} is put on {thread} by operation {number}"
    )


def _missing_edge(race: Race) -> str:
    """What would have ordered them."""
    if race.second_thread == HOST:
        return f"missing: the host sees {race.first} end before it writes"
    return f"missing: {race.second} waits for {race.first}, or the host sees the latter end before it submits the former"


def _page(buffer: str, unit: str) -> str:
    return f"block {unit}" if buffer == KV else f"{buffer} {unit}"


PREDICATES: Final[tuple[Predicate, ...]] = (
    predicate("AS-1", buffers_keep_still_while_they_are_read, needs=("races",)),
    predicate("AS-2", reads_follow_the_writes_they_need, needs=("races",)),
    predicate("KV-3", writes_of_a_page_are_ordered, needs=("races",)),
    predicate("KV-10", reuse_follows_every_use, needs=("races",)),
    predicate("AS-5", operations_touch_what_they_declared, needs=("misdeclared",)),
)
