"""Three verdicts merge to the worst of them, and nothing at all is unknown."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from properties.verdict import Verdict, Violation, merge, verdict_of

VALID, UNKNOWN, INVALID = Verdict.VALID, Verdict.UNKNOWN, Verdict.INVALID


@pytest.mark.parametrize(
    ("verdicts", "expected"),
    [
        pytest.param([], UNKNOWN, id="nothing is unknown"),
        pytest.param([VALID, VALID], VALID, id="valid only if all are"),
        pytest.param([VALID, UNKNOWN], UNKNOWN, id="unknown is not a pass"),
        pytest.param([UNKNOWN, INVALID, VALID], INVALID, id="invalid outweighs unknown"),
    ],
)
def test_the_worst_verdict_counts(verdicts: list[Verdict], expected: Verdict) -> None:
    assert merge(verdicts) is expected


@given(st.lists(st.sampled_from(Verdict), min_size=1), st.randoms())
def test_the_order_of_verdicts_does_not_matter(verdicts: list[Verdict], random: object) -> None:
    shuffled = list(verdicts)
    random.shuffle(shuffled)  # type: ignore[attr-defined]  # hypothesis' own Random
    assert merge(shuffled) is merge(verdicts)


@given(st.lists(st.sampled_from(Verdict), min_size=1), st.lists(st.sampled_from(Verdict), min_size=1))
def test_merging_in_parts_changes_nothing(one: list[Verdict], other: list[Verdict]) -> None:
    assert merge([merge(one), merge(other)]) is merge([*one, *other])


def test_each_verdict_has_an_exit_code_of_its_own() -> None:
    assert (VALID.exit_code, INVALID.exit_code, UNKNOWN.exit_code) == (0, 1, 2)


def test_a_violation_reads_as_a_sentence() -> None:
    assert Violation("KV-4", "freed once", "block 3", "two", "one").sentence == "block 3: found two, expected one"


@pytest.mark.parametrize(
    ("failed", "missed", "due"),
    [
        pytest.param((), (), VALID, id="nothing is wrong"),
        pytest.param((), ("a floor",), UNKNOWN, id="a floor was missed"),
        pytest.param(("a failure",), ("a floor",), INVALID, id="a failure counts more than a floor"),
        pytest.param(None, [], VALID, id="no failure, no list"),
    ],
)
def test_a_suite_is_valid_only_where_nothing_failed_or_was_missed(failed: object, missed: object, due: Verdict) -> None:
    assert verdict_of(failed, missed) is due
