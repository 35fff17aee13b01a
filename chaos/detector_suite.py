"""The suite `race-detector`: what the device's detector of races says of random programs, set against all pairs of accesses.

Owns a second, slow account of who is ordered after whom: for each access the set of all that lie before it, built from the same
few rules (one stream, a wait, submission after what the host knew, the host having seen an end). Everything else here rests on
that detector: one that goes blind to a kind of race makes every other suite valid. (AS-2, KV-3, KV-10)
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from typing import Final, NamedTuple

from engine_under_test.events import Race, RaceKind
from engine_under_test.execution.races import HOST, Clock, RaceDetector
from engine_under_test.seams import DeviceOp, Page, Stream
from properties.invariants.predicate import violation
from properties.suite import CheckResult, Failure, Profile, SuiteContext
from properties.verdict import Violation, verdict_of

SUITE_ID: Final = "race-detector"
_PROGRAMS: Final = {Profile.QUICK: 400, Profile.PR: 4_000, Profile.NIGHTLY: 200_000}
_LENGTH: Final = 14
_PAGES: Final = 3
_FLOOR: Final = 100  # of each kind of race between each two of host and device, in profile pr
_STREAMS: Final = tuple(Stream)


class _Event(NamedTuple):
    """A submission, an access of the host, or the host seeing the end of a submission. ``after``: numbers of submissions."""

    stream: Stream | None  # None: the host
    reads: frozenset[Page] = frozenset()
    writes: frozenset[Page] = frozenset()
    after: tuple[int, ...] = ()
    sees: int | None = None


class _Pair(NamedTuple):
    kind: RaceKind
    page: Page
    first: int
    second: int


def run_race_detector(context: SuiteContext) -> CheckResult:
    """A fixed number of programs, up to the first that the two accounts see differently."""
    total = _PROGRAMS[context.profile]
    reached = Counter[str]()
    failures: tuple[Failure, ...] = ()
    done = events = 0
    for number in range(total):
        program = tuple(_draw(random.Random(f"{context.seed} {number}")))
        done, events = done + 1, events + len(program)
        found = _differs(program, reached)
        if number % 100 == 0:
            context.progress(done, total)
        if found is not None:
            failures = (Failure(found, f"{SUITE_ID}#{number}", {"suite": SUITE_ID, "seed": context.seed}),)
            break
    kinds = [f"{kind.value}, {who}" for kind in RaceKind for who in ("streams", "host and stream")]
    needed = _FLOOR * total // _PROGRAMS[Profile.PR]
    missed = tuple(f"{kind}: {reached[kind]} of {needed}" for kind in kinds if reached[kind] < needed)
    return CheckResult(
        SUITE_ID,
        verdict_of(failures, missed),
        examples=done,
        ops=events,
        reached=dict(sorted(reached.items())),
        missed=() if failures else missed,
        invariants={"AS-2": done, "KV-3": done, "KV-10": done},
        failures=failures,
        note=f"{done:,} random programs on {len(_STREAMS)} streams and the host, each pair of accesses looked at",
    )


def _draw(chance: random.Random) -> Iterator[_Event]:
    submitted = 0
    for _ in range(_LENGTH):
        if submitted and chance.random() < 0.15:
            yield _Event(None, sees=chance.randrange(submitted))
            continue
        pages = [Page("kv", number) for number in range(_PAGES)]
        reads = frozenset(page for page in pages if chance.random() < 0.3)
        writes = frozenset(page for page in pages if chance.random() < 0.25)
        if chance.random() < 0.15:
            yield _Event(None, reads, writes)
            continue
        waits = tuple(number for number in range(submitted) if chance.random() < 0.25)
        yield _Event(chance.choice(_STREAMS), reads, writes, waits)
        submitted += 1


def _differs(program: tuple[_Event, ...], reached: Counter[str]) -> Violation | None:
    """Where the detector and the pairs part, up to the first race of each page: what it says behind that is worth nothing."""
    told, due = _told(program), _pairs(program)
    raced: set[Page] = set()
    for number in range(len(program)):
        for page in [Page("kv", each) for each in range(_PAGES)]:
            if page in raced:
                continue
            kinds = {pair.kind for pair in due[number] if pair.page == page}
            found = {race.kind for race in told[number] if (race.buffer, race.unit) == page}
            for kind in kinds:
                reached[f"{kind.value}, {_who(program, next(p for p in due[number] if (p.page, p.kind) == (page, kind)))}"] += 1
            if found != kinds:
                identifier = "KV-10" if RaceKind.WRITE_AFTER_READ in kinds ^ found else "AS-2"
                subject = f"access {number} of {page.buffer} {page.unit}"
                facts = [f"{place:2d}  {_wording(event)}" for place, event in enumerate(program)]
                return violation(identifier, subject, f"told {_words(found)}", f"{_words(kinds)}, by all pairs", *facts)
            if kinds:
                raced.add(page)
    return None


def _told(program: tuple[_Event, ...]) -> list[tuple[Race, ...]]:
    """What the detector finds at each event."""
    detector, clocks, found = RaceDetector(), list[Clock](), list[tuple[Race, ...]]()
    for number, event in enumerate(program):
        if event.sees is not None:
            detector.host_saw(clocks[event.sees])
        elif event.stream is None:
            detector.host_touched(event.reads, event.writes)
        else:
            op = DeviceOp(f"op {number}", event.reads, event.writes, lambda: None)
            clocks.append(detector.submitted(event.stream, op, [clocks[each] for each in event.after]))
        found.append(detector.take_races())
    return found


def _pairs(program: tuple[_Event, ...]) -> list[list[_Pair]]:
    """At each event its conflicts with events that do not lie before it. Only the last write of a page, and what read it since,
    count: with an older one, those are in conflict as well, or were at their own time."""
    known: set[int] = set()  # to the host
    newest: dict[Stream, int] = {}
    before: dict[int, set[int]] = {}
    submissions: list[int] = []
    found: list[list[_Pair]] = []
    for number, event in enumerate(program):
        if event.sees is not None:
            seen = submissions[event.sees]
            known |= before[seen] | {seen}
            found.append([])
            continue
        lie = set(known)
        if event.stream is not None:
            waited = [submissions[each] for each in event.after]
            waited += [newest[event.stream]] if event.stream in newest else []
            for each in waited:
                lie |= before[each] | {each}
            newest[event.stream] = number
            submissions.append(number)
        else:
            known.add(number)
        before[number] = lie
        found.append(_conflicts(program, number, lie))
    return found


def _conflicts(program: tuple[_Event, ...], number: int, lie: set[int]) -> list[_Pair]:
    event = program[number]
    found = []
    for page in event.reads | event.writes:
        write = next((each for each in reversed(range(number)) if page in program[each].writes), None)
        since = range(0 if write is None else write + 1, number)
        if write is not None and write not in lie:
            kinds = [RaceKind.READ_AFTER_WRITE] if page in event.reads else []
            kinds += [RaceKind.WRITE_AFTER_WRITE] if page in event.writes else []
            found += [_Pair(kind, page, write, number) for kind in kinds]
        if page in event.writes:
            reads = [each for each in since if page in program[each].reads and each not in lie]
            found += [_Pair(RaceKind.WRITE_AFTER_READ, page, each, number) for each in reads]
    return found


def _who(program: tuple[_Event, ...], pair: _Pair) -> str:
    has_host = None in (program[pair.first].stream, program[pair.second].stream)
    return "host and stream" if has_host else "streams"


def _words(kinds: set[RaceKind]) -> str:
    return ", ".join(sorted(kind.value for kind in kinds)) or "no race"


def _wording(event: _Event) -> str:
    if event.sees is not None:
        return f"the host sees the end of submission {event.sees}"
    who = HOST if event.stream is None else event.stream.value
    reads = " ".join(str(page.unit) for page in sorted(event.reads)) or "nothing"
    writes = " ".join(str(page.unit) for page in sorted(event.writes)) or "nothing"
    waits = f", behind submissions {', '.join(map(str, event.after))}" if event.after else ""
    return f"{who} reads {reads}, writes {writes}{waits}"
