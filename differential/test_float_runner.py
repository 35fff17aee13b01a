"""The suite of the runner: valid on the engine; a fault of its store, memory or batch is found; a switch that leads elsewhere
is unknown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.nn import functional

from differential.cells import CachedCells, against_plain, against_reference
from differential.faults import StepwiseMemory, due_of
from differential.float_runner import SUITE_ID, check_float_runner, of_memory, of_nan, of_rows, of_shapes
from differential.judging import Judge
from differential.reference import reference_cells
from differential.running import run
from differential.setting import Setting, weights_of
from differential.suites import FLOAT_RUNNER, SUITES
from differential.trials import Task
from engine_under_test.errors import RunnerError
from engine_under_test.execution import attention, memory, products, transformer
from engine_under_test.execution.transformer import TransformerRunner
from engine_under_test.seams import Space
from engine_under_test.types import BlockCopy
from properties.suite import CheckResult, Profile, SuiteContext
from properties.verdict import Verdict

CONTEXT = SuiteContext(Profile.QUICK, 11, shrink_s=3.0)


def check(task: Task, names: Sequence[str] = ()) -> CheckResult:
    """Some trials of a task alone."""
    chosen = tuple(trial for trial in task.trials if not names or trial.name in names)
    return check_float_runner(CONTEXT, told=lambda _profile, _seed: (replace(task, trials=chosen),))


def broken_by(result: CheckResult) -> str:
    assert result.verdict is Verdict.INVALID
    return result.failures[0].violation.invariant


@pytest.mark.parametrize("make", [of_memory, of_nan], ids=["memory that says no", "a row that is not a number"])
def test_only_those_end_whom_the_fault_ends(make: Callable[[int], Task]) -> None:
    result = check(make(3))
    assert (result.verdict, result.missed) == (Verdict.VALID, ())
    assert {"SC-12", "KV-16", "SE-1", "SE-4"} <= set(result.invariants)


def test_rows_and_shapes_are_valid() -> None:
    tasks = (list(of_rows(3))[1], next(of_shapes(Profile.QUICK, 3)))
    result = check_float_runner(CONTEXT, told=lambda _profile, _seed: tasks)
    assert (result.verdict, result.missed) == (Verdict.VALID, ())


def test_a_fill_that_leaves_what_stood_there_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_fill(_runner: TransformerRunner, _blocks: Sequence[int]) -> None: ...

    monkeypatch.setattr(TransformerRunner, "_fill", no_fill)
    result = check(of_memory(3), ["memory refused in turn"])
    assert broken_by(result) == "KV-16"
    assert "expected poison, by the plan's fill" in result.failures[0].violation.sentence


def test_a_copy_that_takes_too_few_slots_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = TransformerRunner._copy

    def short(runner: TransformerRunner, copies: Sequence[BlockCopy]) -> None:
        whole(runner, [copy._replace(num_slots=copy.num_slots - 1) for copy in copies])

    monkeypatch.setattr(TransformerRunner, "_copy", short)
    world = of_nan(3).trials[0].world
    forked = replace(world, setting=Setting("forked", choices=2))
    found = run(forked, of_nan(3).requests).violation
    assert found is not None
    assert found.invariant == "KV-11"


def test_a_store_into_a_slot_that_no_plan_lists_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    store = attention.TorchStore.store

    def wide(self: Any, keys: Any, values: Any, key_cache: torch.Tensor, value_cache: Any, slots: Any) -> None:
        store(self, keys, values, key_cache, value_cache, slots)
        key_cache[0] = 1.0

    monkeypatch.setattr(attention.TorchStore, "store", wide)
    result = check(of_memory(3), ["memory refused in turn"])
    assert broken_by(result) == "KV-16"
    assert "the padding block" in result.failures[0].violation.sentence


def test_values_that_are_stored_a_little_off_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Too little for a logit: the cell itself is compared."""
    store = attention.TorchStore.store

    def off(self: Any, keys: Any, values: torch.Tensor, key_cache: Any, value_cache: Any, slots: Any) -> None:
        store(self, keys, values * (1 + 5e-4), key_cache, value_cache, slots)

    task = of_memory(3)
    ran = run(task.trials[0].world, task.requests)
    judge = Judge(task.model, asks_second_oracle=False)
    assert judge.judge(task.trials[0].world, task.requests).violation is None
    known = {(each.request.request_id, 0): each.forced for each in ran.emitted}
    truth = CachedCells(lambda tokens: reference_cells(weights_of(task.model), tokens))
    assert against_reference(ran.written, known, truth, 1e-4).violation is None
    monkeypatch.setattr(attention.TorchStore, "store", off)
    wrong = against_reference(run(task.trials[0].world, task.requests).written, known, truth, 1e-4)
    assert wrong.violation is not None
    assert wrong.violation.subject.startswith("values of layer 0 at position 0 of request r0")
    same_bits = against_plain(run(task.trials[0].world, task.requests).written, ran.written, known)
    assert same_bits.violation is not None
    assert same_bits.violation.invariant == "SE-4"


def test_a_runner_that_never_asks_the_memory_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def take(_memory: memory.StepMemory, _what: str, _num_bytes: int, _space: Space = Space.DEVICE) -> None: ...

    monkeypatch.setattr(memory.StepMemory, "take", take)
    result = check(of_memory(3), ["memory refused in turn"])
    assert broken_by(result) == "SC-2"
    assert "ran without a question to the memory" in result.failures[0].violation.sentence


def test_a_second_try_with_every_row_is_found() -> None:
    task = of_memory(3)
    plans = run(task.trials[0].world, task.requests).plans
    found = due_of(Setting("", refuses=(1,)), (plans[0], plans[0]), (True, False), ((plans[0].plan_id, 1),)).violation
    assert found is not None
    assert (found.invariant, found.expected.partition(":")[0]) == ("SC-2", "at most 4 of its 8 rows")


@pytest.mark.parametrize(
    "blame",
    [lambda _rows, _bad: (), lambda rows, _bad: tuple(rows), lambda rows, bad: tuple(rows.index(row) for row in bad)],
    ids=["nobody", "all who sample", "their places among those who sample"],
)
def test_a_wrong_blame_for_a_row_that_is_not_a_number_is_found(
    monkeypatch: pytest.MonkeyPatch, blame: Callable[[list[int], tuple[int, ...]], tuple[int, ...]]
) -> None:
    require = transformer._require_finite

    def blaming(plan: Any, rows: list[int], logits: Any) -> None:
        try:
            require(plan, rows, logits)
        except RunnerError as error:
            raise RunnerError(str(error), blame(rows, tuple(error.rows))) from error

    monkeypatch.setattr(transformer, "_require_finite", blaming)
    result = check(of_nan(3))
    assert broken_by(result) in ("SC-12", "SC-2")


def test_a_token_taken_from_a_row_that_is_not_a_number_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transformer, "_require_finite", lambda *_: None)
    result = check(of_nan(3), ["a NaN in the batch"])
    assert broken_by(result) == "SC-12"
    assert "due: error after 0 that names NaN" in result.failures[0].violation.sentence


def test_a_switch_that_leads_elsewhere_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(attention.ATTENTIONS, "eager", attention.PagedTorch)
    result = check(of_nan(3), ["a NaN, eager"])
    assert result.verdict is Verdict.UNKNOWN
    assert "a NaN, eager: attention eager at least once, found never" in result.missed
    assert any("nothing by attention paged-torch, found it" in missed for missed in result.missed)


def test_weights_that_are_not_packed_are_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transformer, "choose_product", lambda *_, **__: functional.linear)
    result = check(of_nan(3), ["a NaN, packed weights"])
    assert result.verdict is Verdict.UNKNOWN
    assert "a NaN, packed weights: packed products at least once, found never" in result.missed


def test_a_packed_product_of_one_number_of_rows_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    call = products.PackedProduct.__call__

    def rolled(self: products.PackedProduct, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return call(self, x.roll(1, 0) if len(x) == 17 and w.shape[0] == 97 else x, w)

    monkeypatch.setattr(products.PackedProduct, "__call__", rolled)
    task = next(of_rows(3))
    assert broken_by(check(task, ["34 rows down to one, packed weights"])) in ("SE-1", "SE-3")


def test_the_memory_refuses_the_kth_allocation_of_the_ith_launch() -> None:
    scarce = StepwiseMemory((0, 2))
    answers = []
    for _ in range(3):
        scarce.begin()
        answers.append([scarce.admit(1) for _ in range(3)])
    assert answers == [[True, True, True], [True, False, True], [True, True, True]]


def test_the_suite_bears_the_name_that_it_reports() -> None:
    assert FLOAT_RUNNER in SUITES
    assert FLOAT_RUNNER.id == SUITE_ID
