"""The suite of the Triton kernels: valid under the interpreter, and a kernel that is a little wrong is found and shrunk."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from differential.float_kernels import ATTENTION, SUITE_ID, check_float_kernels, models, tasks, trials
from differential.float_runner import shapes
from differential.setting import ModelSpec
from differential.suites import FLOAT_KERNELS, SUITES
from differential.trials import Task, Trial
from engine_under_test.execution import kernels
from properties.suite import Profile, SuiteContext
from properties.verdict import Verdict

CONTEXT = SuiteContext(Profile.QUICK, 11, shrink_s=4.0)


def test_the_engine_is_valid_and_reaches_what_it_should() -> None:
    result = check_float_kernels(CONTEXT, told=lambda model: trials(model)[1:2], further=_some)  # the gate runs the others
    assert (result.verdict, result.missed, result.failures) == (Verdict.VALID, (), ())
    assert "plans as with fingerprints" in result.note


def test_a_decode_that_reads_a_position_less_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = kernels.decode_attention

    def shorter(queries: Any, keys: Any, values: Any, tables: Any, lengths: torch.Tensor, block_size: int) -> torch.Tensor:
        return whole(queries, keys, values, tables, (lengths - 1).clamp(min=1), block_size)

    monkeypatch.setattr(kernels, "decode_attention", shorter)
    result = check_float_kernels(CONTEXT, told=_first, further=lambda _profile, _seed: ())
    assert result.verdict is Verdict.INVALID
    (failure,) = result.failures
    assert failure.violation.invariant in ("SE-1", "SE-3")
    assert len(failure.ops) < failure.ops_found
    assert failure.world["setting"]["attention"] == ATTENTION


def _some(profile: Profile, seed: int) -> tuple[Task, ...]:
    """A shape, and the row that is not a number."""
    told = tuple(tasks(profile, seed))
    return told[3], told[-1]


def _first(model: ModelSpec) -> tuple[Trial, ...]:
    return trials(model)[:1]


def test_every_group_meets_both_head_sizes_and_both_sizes_of_blocks() -> None:
    for profile in Profile:
        found = list(shapes(profile))
        assert {(heads // kv_heads, head_size) for heads, kv_heads, head_size, _ in found} == {
            (group, head_size) for group in (1, 2, 3, 4, 8) for head_size in (64, 128)
        }
        assert {(head_size, block_size) for *_, head_size, block_size in found} == {(h, b) for h in (64, 128) for b in (16, 32)}


def test_every_trial_runs_on_the_kernels() -> None:
    (model,) = models(Profile.QUICK, 1)
    assert {trial.world.setting.attention for trial in trials(model)} == {ATTENTION}
    assert len({replace(trial.world.setting, name="") for trial in trials(model)}) > 1


def test_every_shape_is_one_that_both_oracles_can_build() -> None:
    shapes = [model.shape for model in models(Profile.NIGHTLY, 1)]
    assert len(shapes) >= 3
    for shape in shapes:
        assert shape is not None
        assert shape.hidden_size % shape.num_heads == 0  # which transformers asks for


def test_the_suite_bears_the_name_that_it_reports() -> None:
    assert FLOAT_KERNELS in SUITES
    assert FLOAT_KERNELS.id == SUITE_ID
