"""The suite of decodes in buckets is valid here, and finds what goes wrong around a recording."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from differential.float_buckets import check_float_buckets, tasks
from engine_under_test.execution.graphs import Buckets, GraphCache, StaticInputs
from properties.suite import CheckResult, Profile, SuiteContext
from properties.verdict import Verdict


def check(trial: int) -> CheckResult:
    (task,) = tasks(Profile.QUICK, 3)
    told = (replace(task, trials=(task.trials[trial],), asks_plain_run=False),)
    return check_float_buckets(SuiteContext(Profile.QUICK, 3, shrink_s=0.2), told=told)


def test_padded_batches_come_to_what_eager_ones_do() -> None:
    result = check(2)
    assert result.verdict is Verdict.VALID, result.missed


_copy_in, _run = StaticInputs.copy_in, GraphCache.run


def _a_width_alone(self: GraphCache, batch: Any) -> Any:
    """Recordings are looked up by the width of their tables: one of fewer rows answers for more."""
    self.recordings = _ByWidth(self.recordings)
    return _run(self, batch)


class _ByWidth(dict[Any, Any]):
    def __contains__(self, key: object) -> bool:
        return any(key[1] == other[1] for other in self)  # type: ignore[index]  # pairs alone are asked for

    def __getitem__(self, key: Any) -> Any:
        return next(value for other, value in self.items() if other[1] == key[1])


def _slots_stay(self: StaticInputs, batch: Any) -> None:
    """Padding keeps the slots of who stood there."""
    slots = self.slots.clone()
    _copy_in(self, batch)
    self.slots[batch.num_rows :] = slots[batch.num_rows :]


def _lengths_stay(self: StaticInputs, batch: Any) -> None:
    """A recording reads as far as the batch before it."""
    lengths = self.lengths.clone()
    _copy_in(self, batch)
    self.lengths[: batch.num_rows] = lengths[: batch.num_rows].clamp(max=batch.tables.shape[1])


@pytest.mark.parametrize(
    ("owner", "name", "fault", "trial"),
    [
        pytest.param(StaticInputs, "copy_in", _slots_stay, 2, id="padding writes where a row wrote"),
        pytest.param(StaticInputs, "copy_in", _lengths_stay, 2, id="lengths of the batch before"),
        pytest.param(GraphCache, "run", _a_width_alone, 1, id="a recording of another bucket"),
        pytest.param(Buckets, "of", lambda self, _num_rows: self.largest, 0, id="the largest bucket for more rows than it has"),
    ],
)
def test_is_found(owner: Any, name: str, fault: Callable[..., Any], trial: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owner, name, fault)
    result = check(trial)
    assert result.verdict is Verdict.INVALID
    assert result.failures[0].violation.invariant in ("SC-13", "KV-16", "SE-1", "SE-2", "SE-3", "SC-12")
