"""Rows that are kept from step to step: explored by Hypothesis beside a dict, and the bugs that the walks must find (SC-13)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

from engine_under_test.execution.rows import KeptRows
from models.rows_suite import check_kept_rows
from models.rows_world import ASKED, RowsOp, RowsWorld, apply, draw, run, shrink
from properties.suite import Profile, SuiteContext
from properties.verdict import Verdict

_NUMBER = st.integers(0, 999)


class RowsMachine(RuleBasedStateMachine):
    """The operations of `models.rows_world`, explored and shrunk by Hypothesis; every step is judged."""

    def __init__(self) -> None:
        super().__init__()
        self.world = RowsWorld()

    def do(self, kind: str, one: int = 0, two: int = 0) -> None:
        apply(self.world, RowsOp(kind, one, two))
        assert self.world.violation is None, self.world.violation

    @rule(asked=st.integers(0, len(ASKED) - 1), length=_NUMBER)
    def join(self, asked: int, length: int) -> None:
        self.do("join", asked, length)

    @rule(chunk=_NUMBER)
    def step(self, chunk: int) -> None:
        self.do("step", chunk)

    @rule(chunk=_NUMBER, resting=st.integers(0, 255))
    def step_without_some(self, chunk: int, resting: int) -> None:
        self.do("step without some", chunk, resting)

    @rule(kind=st.sampled_from(["end", "preempt", "share", "another order", "restart"]), pick=_NUMBER)
    def change(self, kind: str, pick: int) -> None:
        self.do(kind, pick)

    @rule(number=_NUMBER, chunk=_NUMBER)
    def give_up(self, number: int, chunk: int) -> None:
        self.do("give up", number, chunk)

    def teardown(self) -> None:
        self.do("step")


def test_whatever_comes_and_goes_every_row_is_what_the_plan_says() -> None:
    run_state_machine_as_test(
        RowsMachine,
        settings=settings(
            max_examples=100,
            phases=(Phase.generate, Phase.shrink),
            stateful_step_count=30,
            deadline=None,
            derandomize=True,
            database=None,
            suppress_health_check=list(HealthCheck),  # fixed examples: how long they take says nothing
        ),
    )


# ---- bugs that are known from elsewhere ------------------------------------------------------------------------------------

_finish, _swap, _add, _advance = KeptRows.finish, KeptRows.swap, KeptRows.add, KeptRows._advance


def _seeds_stay_where_they_are(self: KeptRows, one: int, other: int) -> None:
    _swap(self, one, other)
    seeds = self._columns["seed"]
    seeds[one], seeds[other] = seeds[other], seeds[one]


def _tables_stay_where_they_are(self: KeptRows, one: int, other: int) -> None:
    _swap(self, one, other)
    self.tables[[one, other]] = self.tables[[other, one]]


def _options_are_those_of_the_first(self: KeptRows, plan: Any, row: int) -> int:
    """A column that does not exist when a row joins is never made."""
    known = set(self._columns)
    place = _add(self, plan, row)
    if len(self) > 1:
        for name in set(self._columns) - known - {"output"}:
            del self._columns[name], self._num_with[name]
    return place


def _lengths_stay_behind(self: KeptRows, place: int) -> None:
    length = self.lengths[place]
    _finish(self, place)
    self.lengths[place] = length


def _copies_are_not_noticed(self: KeptRows, plan: Any, row: int, blocks: Any, copied: Any) -> None:
    del copied
    _advance(self, plan, row, blocks, ())


PLANTED: dict[str, tuple[str, Callable[..., Any]]] = {
    "a seed stays when its row moves": ("swap", _seeds_stay_where_they_are),
    "a table stays when its row moves": ("swap", _tables_stay_where_they_are),
    "an option joined late is ignored": ("add", _options_are_those_of_the_first),
    "a length is left when its row ends": ("finish", _lengths_stay_behind),
    "a block copied on write is not noticed": ("_advance", _copies_are_not_noticed),
}


@pytest.mark.parametrize("planted", PLANTED.values(), ids=PLANTED)
def test_a_walk_finds_and_shrinks(monkeypatch: pytest.MonkeyPatch, planted: tuple[str, Callable[..., Any]]) -> None:
    monkeypatch.setattr(KeptRows, *planted)
    found = next((seed for seed in range(60) if run(draw(seed)).violation is not None), None)
    assert found is not None
    short = shrink(draw(found))
    assert len(short) <= 8
    again = run(short).violation
    assert again is not None
    assert again.invariant == "SC-13"


def test_the_suite_is_valid_and_says_what_it_compared() -> None:
    result = check_kept_rows(SuiteContext(Profile.QUICK, 7))
    assert result.verdict is Verdict.VALID, result.missed
    assert result.invariants["SC-13"] > 1000
