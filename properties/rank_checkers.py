"""What must hold of a group of ranks, judged from what its driver saw: DI-1, DI-2, and SE-3 of what it told.

Owns these sentences. They read `RankEvent` records, and others the outputs beside them; nothing of a process. Those in
`EXACT_CHECKERS` are for a driver on a virtual clock, whose ranks are late only if they are made so; what must hold of its
requests then depends on the policy (`properties/rank_endings.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from engine_under_test.events import RankEvent, RankEventKind
from engine_under_test.types import FinishReason, Logprobs, Output, Request
from properties.checkers import Checker, Finding
from properties.history import OpRecord, Record
from properties.invariants.predicate import violation
from properties.verdict import Violation

_LOGPROB_TOLERANCE = 1e-3  # absolute: sums over ranks add the same float32 numbers in another order
_CUT = frozenset({FinishReason.ERROR, FinishReason.ABORT, FinishReason.DEADLINE})


class _Sent(NamedTuple):
    """What the driver asked every rank to do."""

    plan_id: int | None
    rows: tuple[object, ...]


class _Generation:
    """What is known of one generation of ranks."""

    def __init__(self) -> None:
        self.pools: dict[int, tuple[int, int]] = {}
        self.window = 0
        self.sent: dict[int, _Sent] = {}
        self.executed: dict[int, int] = {}  # rank -> its last sequence
        self.collectives: dict[int, tuple[int, tuple[str, ...]]] = {}  # sequence -> who said so first, and what


def ranks_agree(records: Sequence[Record]) -> Finding:
    """DI-1: all ranks of a generation hold equal pools and execute the driver's plans, rows and collectives in the same order,
    none ahead of another by more than the window.

    Source: Shoeybi et al. 2019, Megatron-LM, section 3; MPI 4.1, section 6.14 (collectives in the same order on all members).
    """
    generations: dict[int, _Generation] = {}
    count = 0
    for event in records:
        if not isinstance(event, RankEvent):
            continue
        state = generations.setdefault(event.generation, _Generation())
        if event.kind is RankEventKind.SENT:
            state.sent[event.sequence] = _Sent(event.plan_id, event.rows)
        elif event.kind in (RankEventKind.JOINED, RankEventKind.EXECUTED) and event.rank is not None:
            count += 1
            judge = _joined if event.kind is RankEventKind.JOINED else _executed
            if found := judge(event, event.rank, state):
                return Finding(count, found)
    return Finding(count)


def _joined(event: RankEvent, rank: int, state: _Generation) -> Violation | None:
    state.pools[rank] = event.pool
    state.window = event.window
    state.executed[rank] = 0
    first, pool = next(iter(state.pools.items()))
    if event.pool != pool:
        return violation("DI-1", f"rank {rank}", f"a pool of {_pool(event.pool)}", f"{_pool(pool)}, as rank {first} holds")
    return None


def _executed(event: RankEvent, rank: int, state: _Generation) -> Violation | None:
    subject = f"rank {rank}, step {event.sequence} of generation {event.generation}"
    last = state.executed.get(rank)
    if last is None:
        return violation("DI-1", subject, "executed before the rank has joined", "a rank that has joined")
    if event.sequence != last + 1:
        return violation("DI-1", subject, f"executed behind step {last}", f"step {last + 1}")
    state.executed[rank] = event.sequence
    return _unlike_sent(event, subject, state.sent.get(event.sequence)) or _unlike_others(event, rank, subject, state)


def _unlike_sent(event: RankEvent, subject: str, sent: _Sent | None) -> Violation | None:
    if sent is None:
        return violation("DI-1", subject, f"plan {event.plan_id} executed", "a step that the driver has sent")
    if event.plan_id != sent.plan_id:
        return violation("DI-1", subject, f"plan {event.plan_id} executed", f"plan {sent.plan_id}, as sent")
    if event.rows != sent.rows:
        return violation("DI-1", subject, f"rows {event.rows}", f"{sent.rows}, as sent")
    return None


def _unlike_others(event: RankEvent, rank: int, subject: str, state: _Generation) -> Violation | None:
    first, collectives = state.collectives.setdefault(event.sequence, (rank, event.collectives))
    if event.collectives != collectives:
        return violation("DI-1", subject, f"collectives {event.collectives}", f"{collectives}, as rank {first} did")
    slowest = min(state.executed, key=lambda each: state.executed[each])
    if event.sequence - state.executed[slowest] > state.window:
        found = f"{event.sequence - state.executed[slowest]} steps ahead of rank {slowest}"
        return violation("DI-1", subject, found, f"at most {state.window}")
    return None


def _pool(pool: tuple[int, int]) -> str:
    return f"{pool[0]} blocks of {pool[1]}"


def deaths_are_noticed_and_answered(records: Sequence[Record]) -> Finding:
    """DI-2: each blow that has a bound is noticed within it, no sooner than it can be, as one to the rank that was struck;
    behind a loss nothing more of that generation is executed, and a new generation begins or the group is closed; every
    request ends once, with the tokens of its twin that no fault touched, or with an explicit error.

    A twin is a request of the same history with the same prompt, parameters, adapter and media under another name.
    Source: Chandra and Toueg, Unreliable Failure Detectors for Reliable Distributed Systems, JACM 1996 (completeness).
    """
    events = [record for record in records if isinstance(record, RankEvent)]
    blows = [event for event in events if event.kind is RankEventKind.STRUCK]
    losses = [place for place, event in enumerate(events) if event.kind is RankEventKind.LOST]
    for blow in blows:
        if found := _noticed(blow, events):
            return Finding(len(blows), found)
    for place in losses:
        if found := _answered(events[place], events[place + 1 :]):
            return Finding(len(blows), found)
    return Finding(len(blows), _ended_alike(records) if blows or losses else None)


def _noticed(blow: RankEvent, events: Sequence[RankEvent]) -> Violation | None:
    if not blow.bound_s:  # it may pass, as a short pause does
        return None
    subject = f"rank {blow.rank}, {blow.reason}, in generation {blow.generation}"
    for event in events:
        if event.kind is RankEventKind.LOST and event.generation == blow.generation and event.at_s >= blow.at_s:
            took = event.at_s - blow.at_s
            if took > blow.bound_s:
                return violation("DI-2", subject, f"noticed after {took:.3f} s", f"within {blow.bound_s:g} s")
            if took < blow.least_s:
                return violation("DI-2", subject, f"noticed after {took:.3f} s", f"not before {blow.least_s:g} s")
            if blow.rank is not None and event.rank != blow.rank:
                who = "no rank" if event.rank is None else f"rank {event.rank}"
                return violation("DI-2", subject, f"{who} named for it ({event.reason})", f"rank {blow.rank}")
            return None
    return violation("DI-2", subject, "never noticed", f"noticed within {blow.bound_s:g} s")


def nobody_is_lost_without_a_blow(records: Sequence[Record]) -> Finding:
    """DI-2: a group is lost only when one of its ranks was dealt a blow that must be noticed: not for a driver that was away,
    nor for a rest that is over in time, nor when everything stood still together.

    Source: Chandra and Toueg, Unreliable Failure Detectors for Reliable Distributed Systems, JACM 1996 (accuracy).
    """
    struck: set[int] = set()
    count = 0
    for event in records:
        if not isinstance(event, RankEvent):
            continue
        count += 1
        if event.kind is RankEventKind.STRUCK and event.bound_s:
            struck.add(event.generation)
        elif event.kind is RankEventKind.LOST and event.generation not in struck:
            who = "the ranks" if event.rank is None else f"rank {event.rank}"
            subject = f"{who} of generation {event.generation}"
            return Finding(count, violation("DI-2", subject, f"lost ({event.reason})", "there, since nothing befell them"))
    return Finding(count)


def _answered(loss: RankEvent, later: Sequence[RankEvent]) -> Violation | None:
    subject = f"generation {loss.generation}, lost by rank {loss.rank}"
    for event in later:
        if event.generation == loss.generation and event.kind is RankEventKind.EXECUTED:
            return violation(
                "DI-2", subject, f"rank {event.rank} executed step {event.sequence} behind it", "nothing more of it"
            )
        if event.kind is RankEventKind.CLOSED or (event.kind is RankEventKind.RESTARTED and event.generation > loss.generation):
            return None
    return violation("DI-2", subject, "nothing behind it", "a new generation, or the end of the group")


def _ended_alike(records: Sequence[Record]) -> Violation | None:
    tokens: dict[tuple[str, int, int], tuple[int, ...]] = {}
    ends: dict[tuple[str, int, int], Output] = {}
    for output in records:
        if isinstance(output, Output):
            key = (output.request_id, output.choice, output.incarnation)
            if key in ends:
                return violation("DI-2", _named(key), f"news at index {output.index} behind its end", "one ending")
            tokens[key] = tokens.get(key, ()) + output.token_ids
            if output.finish_reason is not None:
                ends[key] = output
    first: dict[object, tuple[str, int, int]] = {}
    for key, request in _accepted(records):
        end = ends.get(key)
        if end is None:
            return violation("DI-2", _named(key), "no end", "its tokens, or an explicit error")
        if end.finish_reason is FinishReason.ERROR and not end.message:
            return violation("DI-2", _named(key), "an error without a word", "an error that names its reason")
        if end.finish_reason in _CUT:
            continue
        twin = first.setdefault((request.prompt, request.sampling, request.adapter, request.media, key[1]), key)
        if tokens[key] != tokens[twin]:
            return violation("DI-2", _named(key), f"tokens {tokens[key]}", f"{tokens[twin]}, as {_named(twin)} got")
    return None


def log_probabilities_are_those_of_one_rank(records: Sequence[Record]) -> Finding:
    """SE-3: what a request is told of its prompt's and its own tokens is what its twin was told, within a tolerance, as far as
    both have tokens.

    A twin as in DI-2. Which tokens are the most probable is not compared: where two are about equal, either may stand first.
    """
    told: dict[tuple[str, int, int], list[tuple[Logprobs, ...]]] = {}
    for output in records:
        if isinstance(output, Output):
            of_choice = told.setdefault((output.request_id, output.choice, output.incarnation), [(), ()])
            of_choice[0] += output.prompt_logprobs
            of_choice[1] += output.logprobs
    first: dict[object, tuple[str, int, int]] = {}
    count = 0
    for key, request in _accepted(records):
        if not any(found := told.get(key, [(), ()])):
            continue
        twin = first.setdefault((request.prompt, request.sampling, request.adapter, request.media, key[1]), key)
        if twin == key:
            continue
        for whose, ours, theirs in zip(("prompt", "output"), found, told[twin], strict=True):
            for place, (one, other) in enumerate(zip(ours, theirs, strict=False)):
                count += 1
                if one.tokens[0] != other.tokens[0] or not _are_close(one.values, other.values):
                    subject = f"{_named(key)}, place {place} of its {whose}"
                    return Finding(count, violation("SE-3", subject, f"told {one}", f"{other}, as {_named(twin)} was"))
    return Finding(count)


def _are_close(ours: Sequence[float], theirs: Sequence[float]) -> bool:
    return len(ours) == len(theirs) and all(
        one == other or abs(one - other) <= _LOGPROB_TOLERANCE for one, other in zip(ours, theirs, strict=True)
    )


def _accepted(records: Sequence[Record]) -> list[tuple[tuple[str, int, int], Request]]:
    return [
        ((record.op.request.request_id, choice, record.admission.incarnation), record.op.request)
        for record in records
        if isinstance(record, OpRecord) and record.op.request is not None
        if record.admission is not None and record.admission.is_accepted
        for choice in range(record.op.request.sampling.n)
    ]


def _named(key: tuple[str, int, int]) -> str:
    return f"request {key[0]}{f', choice {key[1]}' if key[1] else ''} (incarnation {key[2]})"


AGREEMENT: Final = Checker("DI-1", ranks_agree)
DEATHS: Final = Checker("DI-2", deaths_are_noticed_and_answered)
NO_FALSE_ALARM: Final = Checker("DI-2", nobody_is_lost_without_a_blow)
TOLD: Final = Checker("SE-3", log_probabilities_are_those_of_one_rank)
RANK_CHECKERS: Final[tuple[Checker, ...]] = (AGREEMENT, DEATHS)
EXACT_CHECKERS: Final[tuple[Checker, ...]] = (*RANK_CHECKERS, NO_FALSE_ALARM)
