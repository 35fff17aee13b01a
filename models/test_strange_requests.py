"""What is no value of its field is no request, and nobody suffers from one that can not go on."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import pytest

from engine_under_test.engine import Engine
from engine_under_test.types import Adapter, Admission, FinishReason, Request
from models.strange_requests import Stuck, check_strange, every_strange, fits, run_stuck
from properties.suite import Profile, SuiteContext
from properties.verdict import Verdict


class _Kind(StrEnum):
    ONE = "one"


@pytest.mark.parametrize(
    ("value", "hint", "is_one"),
    [
        (1, int, True),
        (True, int, False),
        (1, float, True),
        ("\ud800", str, False),
        ("é", str, True),
        ((1, 2), tuple[int, ...], True),
        ([1, 2], tuple[int, ...], False),
        ((1, True), tuple[int, ...], False),
        (((1, 0.5),), tuple[tuple[int, float], ...], True),
        (((1,),), tuple[tuple[int, float], ...], False),
        (None, int | None, True),
        (None, int, False),
        (Adapter("x", 1), Adapter | None, True),
        ("one", _Kind, False),
        (_Kind.ONE, _Kind, True),
    ],
    ids=repr,
)
def test_a_value_is_of_the_type_that_its_annotation_says(value: object, hint: Any, is_one: bool) -> None:
    assert fits(value, hint) is is_one


def test_every_field_of_every_part_is_tried_with_what_is_none_of_its_values() -> None:
    strange = {each.words.split(" = ")[0] for each in every_strange() if not each.is_one}
    assert {"tenant", "media.digest", "sampling.grammar", "sampling.logit_bias", "adapter.version", "grammar.sources"} < strange
    assert len(strange) == 37


def test_a_door_that_lets_anything_in_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    submit = Engine.submit

    def friendly(self: Engine, request: Request) -> Admission:
        found = submit(self, request)
        return found if request.tenant == "" else Admission(request.request_id, 1)

    monkeypatch.setattr(Engine, "submit", friendly)
    result = check_strange(SuiteContext(Profile.QUICK, 1))
    assert result.verdict is Verdict.INVALID
    assert result.failures[0].violation.invariant == "SC-4"


@pytest.mark.parametrize("kind", ["raises", "leaves no number", "leaves infinity", "is not there"])
@pytest.mark.parametrize("depth", [0, 1, 2])
def test_who_can_not_go_on_ends_alone(kind: str, depth: int) -> None:
    for place in range(4):
        table = run_stuck(Stuck(kind, 1, place, depth))
        assert table.violation is None
        assert table.reached["stuck, beside others" if place else "stuck, alone"] == 1


def test_an_error_that_is_swallowed_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine_under_test.sampling.sampler.stuck_after", lambda *_: None)
    violation = run_stuck(Stuck("raises", 0, 1, 1)).violation
    assert violation is not None
    assert str(FinishReason.LENGTH) in violation.found
