"""Faults at depth: valid on the engine; a token in flight of another position, a page that was not declared, an infinite logit
that nobody blames and a stop token masked after its time are found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from differential.float_depth import of_depth, of_lost, of_overflow, of_stops, of_streams
from differential.float_runner import check_float_runner
from differential.setting import World, world_of, world_to
from differential.trials import Task
from engine_under_test.execution import transformer
from engine_under_test.execution.batch import draws
from engine_under_test.execution.landing import LastSamples
from engine_under_test.execution.rows import KeptRows
from engine_under_test.execution.transformer import TransformerRunner
from engine_under_test.sampling.sampler import Draws
from engine_under_test.seams import DeviceOp
from engine_under_test.types import Plan, Reservation, RowId
from properties.suite import CheckResult, Profile, SuiteContext
from properties.verdict import Verdict

CONTEXT = SuiteContext(Profile.QUICK, 11, shrink_s=0.2)


def check(*tasks: Task) -> CheckResult:
    return check_float_runner(CONTEXT, told=lambda _profile, _seed: tasks)


def broken_by(result: CheckResult) -> str:
    assert result.verdict is Verdict.INVALID
    return result.failures[0].violation.invariant


def test_the_engine_is_valid_at_depth() -> None:
    result = check(*of_depth(3))
    assert (result.verdict, result.missed) == (Verdict.VALID, ())
    assert {"SC-12", "AS-1", "AS-2", "AS-5", "KV-3", "KV-10"} <= set(result.invariants)


@pytest.mark.parametrize("world", [trial.world for task in of_depth(3) for trial in task.trials], ids=lambda w: w.setting.name)
def test_a_world_with_its_faults_survives_a_file(world: World) -> None:
    assert world_of(world_to(world)) == world


def test_a_token_in_flight_that_is_found_by_its_row_alone_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def newest(samples: LastSamples, row: RowId, _position: int) -> int:
        return next(token for (owner, _), token in reversed(samples._tokens.items()) if owner == row)

    monkeypatch.setattr(LastSamples, "find", newest)
    assert broken_by(check(of_lost(3))) in ("SE-1", "SE-3")


@pytest.mark.parametrize("verb", ["read", "wrote"])
def test_a_page_that_rows_touch_without_a_declaration_is_found(monkeypatch: pytest.MonkeyPatch, verb: str) -> None:
    declared = TransformerRunner._ops

    def fewer(runner: TransformerRunner, plan: Plan, reservation: Reservation) -> tuple[list[DeviceOp], DeviceOp]:
        before, rows = declared(runner, plan, reservation)
        last = frozenset(runner._pages[table[-1]] for table in reservation.tables)
        return before, replace(rows, reads=last) if verb == "read" else replace(rows, writes=frozenset())

    monkeypatch.setattr(TransformerRunner, "_ops", fewer)
    result = check(of_streams(3))
    assert broken_by(result) == "AS-5"
    assert f"{verb} block" in result.failures[0].violation.found


@pytest.mark.parametrize(
    "is_finite",
    [lambda row: not row.isnan().any(), lambda row: bool(row[0].isfinite()), lambda row: bool(row.amax().isfinite())],
    ids=["NaN alone", "the first column alone", "the largest alone"],
)
def test_an_infinite_logit_that_nobody_is_blamed_for_is_found(
    monkeypatch: pytest.MonkeyPatch, is_finite: Callable[[torch.Tensor], bool]
) -> None:
    require = transformer._require_finite

    def short_sighted(plan: Plan, rows: list[int], logits: torch.Tensor) -> None:
        seen = torch.tensor([0.0 if is_finite(row) else torch.nan for row in logits]).view(-1, 1)
        require(plan, rows, seen)

    monkeypatch.setattr(transformer, "_require_finite", short_sighted)
    assert broken_by(check(of_overflow(3))) == "SC-12"


def test_a_sick_row_behind_the_eighth_that_nobody_looks_at_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    require = transformer._require_finite
    monkeypatch.setattr(transformer, "_require_finite", lambda plan, rows, logits: require(plan, rows[:8], logits[:8]))
    assert broken_by(check(of_overflow(3))) == "SC-12"


def test_a_stop_token_masked_by_what_was_emitted_since_a_preemption_is_found(monkeypatch: pytest.MonkeyPatch) -> None:

    def forgetful(plan: Plan, rows: KeptRows) -> Draws:
        asked = draws(plan, rows)
        chunks = [num for num, samples in zip(plan.num_tokens, plan.samples, strict=True) if samples]
        lens = [at if num > 1 else told for num, at, told in zip(chunks, asked.positions, asked.prompt_lens, strict=True)]
        return asked._replace(prompt_lens=lens)

    monkeypatch.setattr(transformer, "draws", forgetful)
    assert broken_by(check(of_stops(3))) in ("SE-1", "SC-12")
