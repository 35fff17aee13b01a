"""Claims about a whole gate's questions: one that was never asked makes it unknown, by name."""

from __future__ import annotations

from ci.evaluated import must_be_evaluated, never_evaluated
from ci.outcome import Check
from properties.checkers import CHECKERS
from properties.invariants import ALL
from properties.suite import CheckResult
from properties.verdict import Verdict


def check(*identifiers: str, count: int = 1, verdict: Verdict = Verdict.VALID) -> Check:
    result = CheckResult("a", verdict, examples=1, ops=1, invariants=dict.fromkeys(identifiers, count))
    return Check("a", "a", verdict, 7, (), 1.0, result)


EVERYTHING = must_be_evaluated()


def test_every_predicate_and_every_checker_must_be_asked_of_the_engine() -> None:
    assert set(EVERYTHING) == {item.identifier for item in ALL} | {item.identifier for item in CHECKERS}


def test_a_gate_that_asked_everything_somewhere_has_no_doubt() -> None:
    assert never_evaluated([check(*EVERYTHING[:9]), check(*EVERYTHING[9:])]) == ""


def test_what_no_suite_asked_is_named() -> None:
    asked = [name for name in EVERYTHING if name not in ("KV-7", "SK-3")]
    said = never_evaluated([check(*asked), check("SK-3", count=0)])
    assert said == "never evaluated in any suite: KV-7, SK-3; nothing is known of them"


def test_a_suite_that_broke_or_crashed_is_the_reason_already() -> None:
    assert never_evaluated([check("KV-1", verdict=Verdict.INVALID)]) == ""
    assert never_evaluated([check("KV-1"), Check("b", "b", Verdict.UNKNOWN, 7)]) == ""
