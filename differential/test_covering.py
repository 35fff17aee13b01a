"""Claims about the covering array: it holds every pair, each row is judged, and a token that is not the law's is found."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from differential.covered import Case, check_covered
from differential.covering import FACTORS, Row, array, pairs, ranks_of, uncovered
from differential.uniformity import uniform_statistic
from engine_under_test.distributed.rank_processes import Processes
from engine_under_test.sampling.grammar import CompiledGrammars
from engine_under_test.types import Adapter
from properties.grammar_cases import TEXTS, VOCAB_SIZE
from properties.suite import Profile, SuiteContext
from properties.verdict import Verdict

_BUSY = ("cached", "chunks", "batch of 8", "preempted")


@pytest.fixture(scope="module")
def processes() -> Iterator[Processes]:
    """One nursery for all groups of this module."""
    made = Processes()
    yield made
    made.close()


@pytest.fixture(scope="module")
def grammars() -> Iterator[CompiledGrammars]:
    made = CompiledGrammars(TEXTS)
    yield made
    made.close()


@pytest.mark.parametrize("most_ranks", [2, 4])
def test_every_pair_of_values_stands_in_some_row(most_ranks: int) -> None:
    rows = array(most_ranks)
    assert uncovered(rows, most_ranks) == []
    assert len(rows) <= 28  # of 55,296 or 69,120 combinations
    assert max(ranks_of(row.ranks) for row in rows) == most_ranks


def test_the_array_is_the_same_each_time() -> None:
    assert array() == array()


def test_a_row_less_leaves_pairs_out() -> None:
    rows = array()
    assert all(uncovered(rows[:number] + rows[number + 1 :]) for number in range(6))


def test_there_is_a_pair_for_every_two_values() -> None:
    sizes = [len(values) for values in FACTORS.values()]
    assert len(list(pairs())) == (sum(sizes) ** 2 - sum(size**2 for size in sizes)) // 2


def test_the_engine_as_it_is_says_what_the_reference_says() -> None:
    found = check_covered(SuiteContext(Profile.QUICK, 3))
    assert found.verdict is Verdict.VALID, (found.failures, found.missed)


@pytest.mark.parametrize(
    "row",
    [
        Row(*_BUSY, "depth 1", "three choices", "scripted drafts", "filtered", "a repetition", "two adapters", "4 ranks"),
        Row(*_BUSY, "depth 2", "three choices", "prompt lookup", "penalised", "choices", "two adapters", "2 ranks"),
    ],
    ids=["on four ranks", "on two ranks"],
)
def test_everything_at_once_is_the_reference_on_ranks(row: Row, grammars: CompiledGrammars, processes: Processes) -> None:
    case = Case(row, 7, grammars, processes)
    chance = np.random.default_rng(1)
    said = case.serve()
    assert [found for each in said if (found := case.judge(each, chance, [])) is not None] == []
    assert {each.request.adapter for each in said if each.tokens} == {None, Adapter("one", 1), Adapter("two", 3)}
    assert case.reached["preempted"] > 0
    assert row.speculation == "prompt lookup" or case.reached["steps with drafts that stood"] > 0


def test_another_token_is_found(grammars: CompiledGrammars, processes: Processes) -> None:
    row = next(row for row in array() if row.speculation == "scripted drafts" and row.options == "sampled")
    row = row._replace(grammar="free")
    case = Case(row, 5, grammars, processes)
    said = next(each for each in case.serve() if len(each.tokens) > 4)
    chance = np.random.default_rng(1)
    assert case.judge(said, chance, []) is None
    wrong = replace(said, tokens=(*said.tokens[:2], (said.tokens[2] + 1) % VOCAB_SIZE, *said.tokens[3:]))
    found = case.judge(wrong, chance, [])
    assert found is not None
    assert found.invariant in ("SE-2", "SC-12")


def test_numbers_that_are_not_uniform_are_found() -> None:
    chance = np.random.default_rng(1)
    assert uniform_statistic("x", "", chance.random(600), 1e-8).verdict is Verdict.VALID
    assert uniform_statistic("x", "", chance.random(600) ** 2, 1e-8).verdict is Verdict.INVALID
