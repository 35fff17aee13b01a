"""Claims about the covering array: it holds every pair, each row is judged, and a token that is not the law's is found."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from differential.covered import Case, check_covered
from differential.covering import FACTORS, array, pairs, uncovered
from differential.uniformity import uniform_statistic
from engine_under_test.sampling.grammar import CompiledGrammars
from properties.grammar_cases import TEXTS, VOCAB_SIZE
from properties.suite import Profile, SuiteContext
from properties.verdict import Verdict


@pytest.fixture(scope="module")
def grammars() -> Iterator[CompiledGrammars]:
    made = CompiledGrammars(TEXTS)
    yield made
    made.close()


def test_every_pair_of_values_stands_in_some_row() -> None:
    rows = array()
    assert uncovered(rows) == []
    assert len(rows) <= 24  # of 9,216 combinations


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


def test_another_token_is_found(grammars: CompiledGrammars) -> None:
    row = next(
        row for row in array() if row.speculation == "scripted drafts" and row.options == "sampled" and row.grammar == "free"
    )
    case = Case(row, 5, grammars)
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
