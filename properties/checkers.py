"""What must hold of a whole run, judged from its history alone; can be run again on the file.

Owns the checkers and how their verdicts merge. A checker gives *unknown* where it saw no evidence or crashed, never valid. One
whose evidence the target does not show (``has_events`` false in the history) is not observable and gives no verdict.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import compress, repeat
from operator import is_, itemgetter
from typing import Any, Final, NamedTuple, TypeVar, overload

from engine_under_test.events import Counters, Event, EventKind
from engine_under_test.types import FinishReason, Output, Request, RowId
from properties.history import History, Landing, OpRecord, Record
from properties.invariants.catalogue import CATALOGUE
from properties.invariants.predicate import blocks_named, row_named, violation
from properties.op import OpKind
from properties.recount import Recount, differences
from properties.verdict import Verdict, Violation, merge

T = TypeVar("T")
U = TypeVar("U")
Key = tuple[str, int, int]  # request_id, choice, incarnation

# To look a member up in its enumeration takes longer than to compare it.
_ACCEPTED, _SCHEDULED, _HIT, _FINISHED = EventKind.ACCEPTED, EventKind.SCHEDULED, EventKind.HIT, EventKind.FINISHED
_LAUNCHED, _SETTLED, _QUARANTINED, _FREED = EventKind.LAUNCHED, EventKind.SETTLED, EventKind.QUARANTINED, EventKind.FREED
_FOLLOWED = frozenset(map(id, (_ACCEPTED, _FINISHED, _LAUNCHED, _SETTLED, _QUARANTINED, _FREED, _HIT)))
_kind_of = itemgetter(0)  # of an Event


class Finding(NamedTuple):
    """``evidence``: how many things were looked at; 0 means that nothing was judged."""

    evidence: int
    violation: Violation | None = None


@dataclass(frozen=True, slots=True)
class Checker:
    """A named positive sentence over a history."""

    identifier: str
    check: Callable[[Sequence[Record]], Finding]
    needs_events: bool = False
    needs_certainty: bool = False  # drafts, if there are any, are functions of what stands before them

    @property
    def sentence(self) -> str:
        return self.check.__name__.replace("_", " ")


@dataclass(frozen=True, slots=True)
class CheckerVerdict:
    """``note`` says why a verdict is unknown."""

    identifier: str
    sentence: str
    verdict: Verdict
    evidence: int = 0
    violation: Violation | None = None
    note: str = ""


def run_checkers(history: History, checkers: Iterable[Checker] | None = None) -> tuple[CheckerVerdict, ...]:
    """A verdict of each checker that the target's history can feed."""
    has_events = history.meta.get("has_events", True)
    chosen = CHECKERS if checkers is None else checkers
    draws_drafts = history.meta.get("draws_drafts", False)
    return tuple(
        _verdict(checker, history)
        for checker in chosen
        if (has_events or not checker.needs_events) and not (draws_drafts and checker.needs_certainty)
    )


def merged(verdicts: Iterable[CheckerVerdict]) -> Verdict:
    """The worst of them; no checker at all is unknown."""
    return merge(verdict.verdict for verdict in verdicts)


def _verdict(checker: Checker, history: History) -> CheckerVerdict:
    try:
        evidence, found = checker.check(history.records)
    except Exception as error:  # a checker that crashes has judged nothing
        note = f"the checker crashed: {type(error).__name__}: {error}"
        return CheckerVerdict(checker.identifier, checker.sentence, Verdict.UNKNOWN, note=note)
    if found is not None:
        return CheckerVerdict(checker.identifier, checker.sentence, Verdict.INVALID, evidence, found)
    if evidence == 0:
        note = "the history holds nothing that this sentence is about"
        return CheckerVerdict(checker.identifier, checker.sentence, Verdict.UNKNOWN, note=note)
    return CheckerVerdict(checker.identifier, checker.sentence, Verdict.VALID, evidence)


# ---- the sentences ---------------------------------------------------------------------------------------------------


def every_choice_has_one_ending(records: Sequence[Record]) -> Finding:
    """SC-5: token indices of a choice are contiguous from 0, nothing follows its end, and each accepted choice has one.

    That an end is missing is judged only behind the last operation of a run that ends with a drain.
    """
    expected: dict[Key, int] = {}
    ended: set[Key] = set()
    count = 0
    for output in _of(records, Output):
        key, count = _key(output), count + 1
        if key in ended:
            return Finding(count, violation("SC-5", _named(key), f"news at index {output.index} behind its end", "nothing"))
        if output.index != expected.get(key, 0):
            found, wanted = f"tokens from index {output.index}", f"from index {expected.get(key, 0)}"
            return Finding(count, violation("SC-5", _named(key), found, wanted))
        expected[key] = output.index + len(output.token_ids)
        if output.finish_reason is not None:
            ended.add(key)
    if _ends_with_drain(records):
        for key, _request in _accepted(records):
            if key not in ended:
                return Finding(count, violation("SC-5", _named(key), "no end behind the last drain", "one terminal event"))
    return Finding(count)


def aborted_requests_are_never_planned_again(records: Sequence[Record]) -> Finding:
    """SC-6: behind an acknowledged abort no plan schedules a row of that life of the request."""
    latest: dict[str, int] = {}
    aborted: set[tuple[str, int]] = set()
    count = 0
    for record in _of(records, (Event, OpRecord)):
        if isinstance(record, OpRecord):
            if record.op.kind is OpKind.ABORT and not record.is_noop:
                count += 1
                if record.op.request_id in latest:
                    aborted.add((record.op.request_id, latest[record.op.request_id]))
            continue
        kind, row = record.kind, record.row
        if row is None:
            continue
        if kind is _SCHEDULED:
            if aborted and (row.request_id, row.incarnation) in aborted:
                found = f"scheduled by plan {record.plan_id}"
                return Finding(count, violation("SC-6", row_named(row), found, "no plan names it behind its abort"))
        elif kind is _ACCEPTED:
            latest[row.request_id] = row.incarnation
        elif kind is _FINISHED and record.reason == FinishReason.ABORT:
            aborted.add((row.request_id, row.incarnation))
    return Finding(count)


def drains_leave_nothing(records: Sequence[Record]) -> Finding:
    """SC-11: at each drain every accepted choice has ended, every plan has settled and every block taken was let go."""
    live: Counter[tuple[str, int]] = Counter()
    plans: set[int | None] = set()
    quarantined: set[int] = set()
    drains, is_draining = 0, False
    for record in (*_of(records, (Event, OpRecord)), None):
        if isinstance(record, Event):
            if id(record.kind) in _FOLLOWED:
                _follow(record, live, plans, quarantined)
            continue
        if is_draining:  # and all that this drain caused stands between it and what comes next
            drains += 1
            if found := _leftover(live, plans, quarantined):
                return Finding(drains, found)
        is_draining = record is not None and record.op.kind is OpKind.DRAIN
        if record is not None and record.op.kind is OpKind.RESTART and not record.is_noop:
            plans.clear()
            quarantined.clear()
    return Finding(drains)


def _follow(event: Event, live: Counter[tuple[str, int]], plans: set[int | None], quarantined: set[int]) -> None:
    kind, row = event.kind, event.row
    if kind is _ACCEPTED and row is not None:
        live[row.request_id, row.incarnation] += 1
    elif kind is _FINISHED and row is not None and row.choice == 0:
        live[row.request_id, row.incarnation] -= 1
    elif kind is _LAUNCHED:
        plans.add(event.plan_id)
    elif kind is _SETTLED:
        plans.discard(event.plan_id)
    elif kind is _QUARANTINED:
        quarantined.update(event.blocks)
    elif kind is _FREED or kind is _HIT:
        quarantined.difference_update(event.blocks)


def _leftover(live: Counter[tuple[str, int]], plans: set[int | None], quarantined: set[int]) -> Violation | None:
    left = [f"request {name} (incarnation {life})" for (name, life), count in live.items() if count > 0]
    if left:
        return violation("SC-11", left[0], "live behind a drain", "ended")
    if quarantined:
        return violation("SC-11", blocks_named(quarantined), "quarantined behind a drain", "free")
    if plans:
        return violation("SC-11", f"plans {sorted(map(str, plans))}", "not settled behind a drain", "settled")
    return None


def counters_equal_their_recount(records: Sequence[Record]) -> Finding:
    """SC-14: wherever the history holds counters, each equals what the events before them add up to."""
    counting, told, count = Recount(), list[Event](), 0
    for record in _of(records, (Event, Counters)):
        if isinstance(record, Event):
            told.append(record)
            continue
        counting.add(told)
        told.clear()
        count += 1
        if wrong := differences(record, counting.counters):
            return Finding(count, violation("SC-14", "counters", wrong[0], "equal to their recount", *wrong[1:]))
    return Finding(count)


def plan_identifiers_are_never_reused(records: Sequence[Record]) -> Finding:
    """SK-3: plan identifiers rise in the order of launch, restarts included."""
    last, count = -1, 0
    for event in _told(records, _LAUNCHED):
        if event.plan_id is not None:
            count += 1
            if event.plan_id <= last:
                found, expected = f"launched behind plan {last}", "a higher identifier than ever before"
                return Finding(count, violation("SK-3", f"plan {event.plan_id}", found, expected))
            last = event.plan_id
    return Finding(count)


def emitted_tokens_were_drawn_at_their_own_address(records: Sequence[Record]) -> Finding:
    """ST-3: each sampled token that was emitted was drawn at its own address: seed, choice and index in prompt + output.

    Indices of a choice differ, so at most one draw at an address is emitted for it. A relaunch behind an abandoned, preempted
    or dropped row repeats its addresses on purpose; then only one of the two emits.
    """
    landings = {landing.plan_id: landing for landing in _of(records, Landing)}
    requests = {key: request for key, request in _accepted(records) if request.sampling.temperature}
    emitted: Counter[Key] = Counter()
    count = 0
    for event in _told(records, EventKind.EMITTED):
        if event.row is None or (request := requests.get(event.row[:3])) is None:
            continue
        landing = landings.get(event.plan_id) if event.plan_id is not None else None
        first = len(request.prompt) + emitted[event.row[:3]]
        emitted[event.row[:3]] += event.tokens
        for position in range(first, first + event.tokens):
            count += 1
            own = request.sampling.seed, event.row.choice, position
            if landing is None or not any((*own, purpose) in landing.addresses for purpose in _PURPOSES):
                found = f"emitted by plan {event.plan_id}, which did not draw at {(*own, _SAMPLE)}"
                return Finding(count, violation("ST-3", row_named(event.row), found, "a draw at its own address"))
    return Finding(count)


_SAMPLE: Final = 0  # the purpose of a draw that chooses a token (docs/fingerprint.md, "Noise")
_PURPOSES: Final = (_SAMPLE, 1, 2)  # or that keeps a draft, or chooses what stands in its place


def the_same_request_gets_the_same_tokens(records: Sequence[Record]) -> Finding:
    """SE-2: two choices with the same prompt, adapter, media, parameters and seed have the same tokens, as far as both go."""
    first: dict[object, tuple[Key, tuple[int, ...]]] = {}
    requests = {key[::2]: request for key, request in _accepted(records)}
    count = 0
    for key, tokens in _streams(records).items():
        request = requests.get((key[0], key[2]))
        if request is None or not tokens:
            continue
        count += 1
        known = first.setdefault(_likeness(request, key[1]), (key, tokens))
        shared = min(len(tokens), len(known[1]))
        if tokens[:shared] != known[1][:shared]:
            at = next(i for i in range(shared) if tokens[i] != known[1][i])
            found, expected = f"token {tokens[at]} at index {at}", f"{known[1][at]}, as {_named(known[0])} got"
            return Finding(count, violation("SE-2", _named(key), found, expected))
        if len(tokens) > len(known[1]):
            first[_likeness(request, key[1])] = (key, tokens)
    return Finding(count)


def _likeness(request: Request, choice: int) -> object:
    """What determines the tokens of a choice, and nothing else: no name, no tenant, no priority."""
    sampling = request.sampling
    drops = (sampling.min_p, sampling.top_k, sampling.top_p)
    drawn = (sampling.temperature, sampling.seed, choice, drops) if sampling.temperature else ()
    masks = sampling.min_tokens or sampling.grammar
    stops = (sampling.min_tokens, sampling.grammar, frozenset(sampling.stop_token_ids)) if masks else ()
    return (request.prompt, request.adapter, request.media, drawn, stops)


def _streams(records: Sequence[Record]) -> dict[Key, tuple[int, ...]]:
    streams: dict[Key, list[int]] = {}
    for output in _of(records, Output):
        streams.setdefault(_key(output), []).extend(output.token_ids)
    return {key: tuple(tokens) for key, tokens in streams.items()}


def _accepted(records: Sequence[Record]) -> Iterator[tuple[Key, Request]]:
    """Every choice of every accepted request, by the answers at the door."""
    for record in _of(records, OpRecord):
        request, answer = record.op.request, record.admission
        if request is not None and answer is not None and answer.is_accepted:
            for choice in range(request.sampling.n):
                yield (request.request_id, choice, answer.incarnation), request


def _ends_with_drain(records: Sequence[Record]) -> bool:
    last = next(_of(records[::-1], OpRecord), None)
    return last is not None and last.op.kind is OpKind.DRAIN


# Nothing is derived from a class of records, and of a kind of event there is one object: looking at which it is suffices.


@overload
def _of(records: Sequence[Record], kinds: type[T]) -> Iterator[T]: ...


@overload
def _of(records: Sequence[Record], kinds: tuple[type[T], type[U]]) -> Iterator[T | U]: ...


def _of(records: Sequence[Record], kinds: type | tuple[type, ...]) -> Iterator[Any]:
    """The records of one class, or of two, in order."""
    wanted = frozenset(kinds if isinstance(kinds, tuple) else (kinds,))
    return compress(records, map(wanted.__contains__, map(type, records)))


def _told(records: Sequence[Record], kind: EventKind) -> Iterator[Event]:
    """The events of one kind, in order."""
    events = tuple(_of(records, Event))
    return compress(events, map(is_, map(_kind_of, events), repeat(kind)))


def _key(output: Output) -> Key:
    return (output.request_id, output.choice, output.incarnation)


def _named(key: Key) -> str:
    return row_named(RowId(*key, 0)).replace(", epoch 0", "")


CHECKERS: Final[tuple[Checker, ...]] = (
    Checker("SC-5", every_choice_has_one_ending),
    Checker("SC-6", aborted_requests_are_never_planned_again, needs_events=True),
    Checker("SC-11", drains_leave_nothing, needs_events=True),
    Checker("SC-14", counters_equal_their_recount, needs_events=True),
    Checker("SK-3", plan_identifiers_are_never_reused, needs_events=True),
    Checker("ST-3", emitted_tokens_were_drawn_at_their_own_address, needs_events=True),
    Checker("SE-2", the_same_request_gets_the_same_tokens, needs_certainty=True),
)
assert all(checker.identifier in CATALOGUE for checker in CHECKERS)
