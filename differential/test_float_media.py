"""The suite of media is valid here, and finds embeddings that stand where they should not, or are another item's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from differential.float_media import check_float_media, tasks
from differential.made_media import MadeEncoder, spell_out
from engine_under_test.execution import batch
from engine_under_test.execution.media import MediaPart, parts_of
from engine_under_test.kv import transaction
from engine_under_test.types import Media, Request
from properties.suite import CheckResult, Profile, SuiteContext
from properties.verdict import Verdict


def check(trial: int) -> CheckResult:
    (task,) = tasks(Profile.QUICK, 3)
    told = (replace(task, trials=(task.trials[trial],), asks_plain_run=False),)
    return check_float_media(SuiteContext(Profile.QUICK, 3, shrink_s=0.2), told=told)


@pytest.mark.parametrize("trial", [0, 3], ids=["cut by chunks", "cached"])
def test_media_are_seen_where_they_stand(trial: int) -> None:
    result = check(trial)
    assert result.verdict is Verdict.VALID, result.missed


def test_a_position_under_an_item_is_spelled_as_the_item_and_its_place_there() -> None:
    one = Request("r", (1, 2, 3, 4), media=(Media("a", 1, 2),))
    other = replace(one, media=(Media("b", 1, 2),))
    later = replace(one, media=(Media("a", 2, 2),))
    found = spell_out(one, one.prompt)
    assert (found[0], found[3]) == (1, 4)
    assert spell_out(later, one.prompt)[2] == found[1] != spell_out(other, one.prompt)[1]
    encoder = MadeEncoder(8, torch.float32)
    assert encoder.spelled(found[2]).equal(encoder.encode("a", 2)[1])


def _a_place_late(*told: Any) -> Iterator[MediaPart]:
    """Every cut item is continued with one embedding skipped."""
    for part in parts_of(*told):
        yield part._replace(offset=min(part.offset + (part.offset > 0), part.length - part.num))


def _offsets_are_no_key(media: Any, _start: int, _end: int) -> tuple[tuple[str, int, int], ...]:
    """Blocks under one item are the same, wherever it stands in them."""
    return tuple((item.digest, 0, item.length) for item in media)


@pytest.mark.parametrize(
    ("owner", "name", "fault", "trial"),
    [
        pytest.param(batch, "parts_of", _a_place_late, 0, id="an embedding skipped behind a cut"),
        pytest.param(transaction, "media_in", _offsets_are_no_key, 2, id="a cache that knows no offset"),
        pytest.param(transaction, "media_in", lambda *_: (), 2, id="a cache that knows no media"),
    ],
)
def test_is_found(owner: Any, name: str, fault: Callable[..., Any], trial: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owner, name, fault)
    result = check(trial)
    assert result.verdict is Verdict.INVALID
    assert result.failures[0].violation.invariant in ("SE-1", "SE-2", "SE-3")
