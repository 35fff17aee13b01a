"""What is not judged again was not in need of it: a predicate reads what it declares, and a change of that is judged."""

from __future__ import annotations

from collections import Counter
from dataclasses import fields, replace
from itertools import islice
from random import Random
from typing import Any

import pytest

from engine_under_test.types import SequenceSnapshot, Snapshot, Status
from models.build import target_from
from models.judging import Judge
from models.walk import small_shape, walk_ops
from models.world import World
from properties.invariants import ALL, Predicate, view
from properties.invariants.example_moments import GOOD
from properties.invariants.examples import changed
from properties.invariants.predicate import SEQUENCES, TABLES
from properties.invariants.test_predicates import BAD, Bad
from properties.moment import Happening, Moment
from properties.verdict import Violation

DECLARING = [predicate for predicate in ALL if predicate.reads]
COLUMNS = {
    "free": lambda free: (*free, 99),
    "cached": lambda cached: dict(list(cached.items())[1:]),
    "ref_counts": lambda counts: (*counts[:-1], counts[-1] + 1),
    "reservations": lambda found: {**found, 99: ()},
    "pinned": lambda pinned: (*pinned, 99),
    "quarantined": lambda found: {**found, 99: 99},
    "plans": lambda plans: (*plans, 99),
    "unsettled": lambda plans: (*plans, 99),
    "waiting": lambda waiting: (*waiting, *GOOD["planned"].before.running[:1]),
    "running": lambda running: running[1:],
}
FRAME = ("block_size", "num_blocks", "generation", "cache_generation")


class Untouchable:
    """Stands where nobody may look."""

    def _refuse(self, *_args: Any) -> Any:
        raise AssertionError("a predicate looked at what it does not declare")

    __getattr__ = __iter__ = __len__ = __contains__ = __bool__ = __getitem__ = _refuse


class Distant:
    """Facts to which one may point as long as nobody looks into them."""

    def __getattr__(self, _name: str) -> Any:
        return Untouchable()


class Spy:
    """A predicate of the same columns that finds nothing until it is told to judge in earnest."""

    def __init__(self, predicate: Predicate) -> None:
        self.seen: list[Moment] = []
        self.is_earnest = False
        self._check = predicate.check
        self.judge = Judge([replace(predicate, check=self, only_with=())], GOOD["planned"].caps)
        self.__doc__ = predicate.check.__doc__

    def __call__(self, moment: Moment) -> Violation | None:
        self.seen.append(moment)
        return self._check(moment) if self.is_earnest else None


def happening_of(predicate: Predicate) -> Happening:
    return Happening.POLLED if predicate.happenings is None else sorted(predicate.happenings)[0]


def still(snapshot: Snapshot, predicate: Predicate) -> Moment:
    """A moment in which nothing changed, though its two snapshots are two objects."""
    moment = replace(GOOD["planned"], happening=happening_of(predicate), before=replace(snapshot), after=snapshot)
    return replace(moment, planned=None, in_flight=(), events=())


named = pytest.mark.parametrize("predicate", DECLARING, ids=lambda p: p.sentence)


@named
@pytest.mark.parametrize("column", COLUMNS)
def test_a_change_of_a_declared_column_is_judged_and_of_no_other(predicate: Predicate, column: str) -> None:
    spy = Spy(predicate)
    first = still(GOOD["planned"].after, predicate)
    moved = replace(first, before=first.after, after=changed(first.after, (column,), COLUMNS[column]))
    assert spy.judge.judge(first) is None
    assert spy.judge.judge(moved) is None
    is_read = column in predicate.reads or (TABLES in predicate.reads and column in SEQUENCES)
    assert spy.seen == ([first, moved] if is_read else [first])


@named
def test_who_reads_tables_reads_nothing_else_of_a_choice(predicate: Predicate) -> None:
    spy = Spy(predicate)
    first = still(GOOD["planned"].after, predicate)
    moved = replace(first, before=first.after, after=changed(first.after, ("running", 0, "visible_len"), 99))
    assert spy.judge.judge(first) is None
    assert spy.judge.judge(moved) is None
    assert spy.seen == ([first, moved] if "running" in predicate.reads else [first])


@named
@pytest.mark.parametrize("column", FRAME)
def test_a_new_generation_is_judged_whole(predicate: Predicate, column: str) -> None:
    spy = Spy(predicate)
    first = still(GOOD["planned"].after, predicate)
    moved = replace(first, before=first.after, after=changed(first.after, (column,), 99))
    assert spy.judge.judge(first) is None
    assert spy.judge.judge(moved) is None
    assert spy.seen == [first, moved]


@named
def test_an_audit_judges_what_did_not_change(predicate: Predicate) -> None:
    spy = Spy(predicate)
    first = still(GOOD["planned"].after, predicate)
    audit = replace(first, before=first.after, after=replace(first.after), is_audit=True)
    assert spy.judge.judge(first) is None
    assert spy.judge.judge(audit) is None
    assert spy.seen == [first, audit]


@named
def test_an_answer_for_another_snapshot_is_no_answer(predicate: Predicate) -> None:
    spy = Spy(predicate)
    first = still(GOOD["planned"].after, predicate)
    second = still(replace(GOOD["planned"].after), predicate)
    assert spy.judge.judge(first) is None
    assert spy.judge.judge(second) is None
    assert spy.seen == [first, second], "the second does not follow on the first"


@named
def test_what_never_changes_is_judged_once(predicate: Predicate) -> None:
    spy = Spy(predicate)
    snapshot = GOOD["planned"].after
    moment = still(snapshot, predicate)
    for _ in range(3):
        assert spy.judge.judge(moment) is None
        moment = replace(moment, before=moment.after, after=replace(moment.after))
    assert len(spy.seen) == 1


@pytest.mark.parametrize(
    "case",
    [case for case in BAD if case.predicate in {p.check.__name__ for p in DECLARING}],
    ids=lambda case: f"{case.predicate.replace('_', ' ')} - {case.claim}",
)
def test_a_violation_behind_a_held_answer_is_found(case: Bad) -> None:
    predicate = next(p for p in DECLARING if p.check.__name__ == case.predicate)
    bad: Moment = changed(GOOD[case.good], case.path, case.new)
    spy = Spy(predicate)
    assert spy.judge.judge(still(bad.before, predicate)) is None
    spy.is_earnest = True
    found = spy.judge.judge(bad)
    assert found is not None
    assert found.invariant == predicate.identifier


@named
@pytest.mark.parametrize("name", GOOD)
def test_a_predicate_looks_at_nothing_that_it_does_not_declare(
    predicate: Predicate, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where its columns stand still: then its answer is one of `after`, in these columns."""
    monkeypatch.setattr(view, "_LAST", [None])  # what others have had derived is no help
    moment = GOOD[name]
    hidden: dict[str, Any] = {
        field.name: Untouchable() for field in fields(Snapshot) if field.name not in (*predicate.reads, *FRAME)
    }
    unseen: Any = Untouchable()
    if TABLES in predicate.reads and "running" not in predicate.reads:
        for column in SEQUENCES:
            hidden[column] = tuple(
                SequenceSnapshot._make(s.table if name == "table" else unseen for name in SequenceSnapshot._fields)
                for s in getattr(moment.after, column)
            )
    distant: Any = Distant()
    moment = replace(
        moment,
        happening=happening_of(predicate),
        before=replace(moment.after, **hidden),
        after=replace(moment.after, **hidden),
        facts=distant,
        events=unseen,
        outputs=unseen,
        in_flight=unseen,
        uses=unseen,
        writes=unseen,
        planned=unseen,
        landed=unseen,
        execution=unseen,
        result=unseen,
        is_audit=False,
    )
    assert predicate.check(moment) is None


OF_FRESH = ("lengths_are_ordered", "transitions_are_legal", "tables_equal_a_recount", "results_move_their_own_rows_only")
SPOILT: dict[str, Any] = {
    "epoch": lambda epoch: epoch - 1,
    "status": lambda _status: Status.FINISHED,
    "visible_len": lambda length: length + 1,
    "committed_len": lambda length: length - 1,
    "scheduled_len": lambda length: length + 1,
    "table": lambda table: table[:-1],
}


@pytest.mark.parametrize("seed", range(3))
def test_what_is_fresh_is_judged_as_if_everything_were(seed: int) -> None:
    """Random worlds, with one column of one choice spoilt at each moment: where every choice is another object than before,
    predicates look at all of them, and find what they find where they look at those that are another object only."""
    rng, found, shape = Random(seed), Counter[str](), small_shape(seed)
    predicates = [predicate for predicate in ALL if predicate.check.__name__ in OF_FRESH]

    def look(moment: Moment) -> None:
        if not moment.after.running:
            return
        number, column = rng.randrange(len(moment.after.running)), rng.choice(list(SPOILT))
        spoilt = changed(moment, ("after", "running", number, column), SPOILT[column])
        after = spoilt.after
        anew = {name: tuple(SequenceSnapshot._make(s) for s in getattr(after, name)) for name in SEQUENCES}
        whole = replace(spoilt, after=replace(after, **anew))
        for predicate in predicates:
            if predicate.applies(moment):
                verdict = predicate.check(spoilt)
                assert verdict == predicate.check(whole)
                found[predicate.check.__name__] += verdict is not None

    world = World(target_from(shape.spec()), on_moment=look)
    world.run(islice(walk_ops(seed, shape), 150))
    assert world.violation is None
    assert min(found[name] for name in OF_FRESH) >= 5
