"""The suite of the kernels by themselves: valid on a few cases, and kernels that are a little wrong are found and shrunk."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from differential.kernel_cases import GROUPS, Case, cases
from differential.kernel_numbers import SUITE_ID, check_kernel_numbers
from differential.suites import KERNEL_NUMBERS, SUITES
from engine_under_test.execution import kernels
from engine_under_test.execution.kernels import verify
from properties.paged import PagedShape, of_lengths
from properties.suite import Profile, SuiteContext
from properties.verdict import Verdict

CONTEXT = SuiteContext(Profile.PR, 11, shrink_s=2.0)
SMALL = (
    Case(PagedShape(3, 1, 64, 16, torch.bfloat16, of_lengths(5, 0, 17), height=300.0)),
    Case(PagedShape(6, 2, 64, 16, torch.float32, ((14, 3), (0, 0)), 1)),
)


def test_the_kernels_are_valid_at_the_end_of_a_vast_store_too() -> None:
    far = tuple(case for case in cases(Profile.PR) if case.is_far)
    result = check_kernel_numbers(CONTEXT, lambda _profile: (*SMALL, *far))
    assert (result.verdict, result.missed, result.failures) == (Verdict.VALID, (), ())
    assert result.reached["pages past 32 bits"] == len(far) == 4
    assert result.reached["orders compared"] == 2


def test_a_result_left_as_it_was_allocated_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = kernels.prefill_attention

    def forgetful(queries: torch.Tensor, *further: Any) -> torch.Tensor:
        found = torch.empty_like(queries)
        found[:-1] = whole(queries, *further)[:-1]
        return found

    monkeypatch.setattr(kernels, "prefill_attention", forgetful)
    result = check_kernel_numbers(CONTEXT, lambda _profile: SMALL)
    assert result.verdict is Verdict.INVALID
    assert result.failures[0].violation.invariant == "KV-16"


def test_a_decode_that_reads_a_position_less_is_found_in_the_fewest_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = kernels.decode_attention

    def shorter(queries: Any, keys: Any, values: Any, tables: Any, lengths: torch.Tensor, *further: Any) -> torch.Tensor:
        return whole(queries, keys, values, tables, (lengths - 1).clamp(min=0), *further)

    monkeypatch.setattr(kernels, "decode_attention", shorter)
    result = check_kernel_numbers(CONTEXT, lambda _profile: SMALL)
    assert result.verdict is Verdict.INVALID
    violation = result.failures[0].violation
    assert (violation.invariant, "decodes of 1 rows" in violation.subject) == ("SE-3", True)


def test_the_night_meets_every_group_with_every_size() -> None:
    found = {(c.shape.heads // c.shape.kv_heads, c.shape.head, c.shape.block) for c in cases(Profile.NIGHTLY)}
    assert found >= {(group, head, block) for group in GROUPS for head in (64, 128) for block in (16, 32)}


def test_the_suite_bears_the_name_that_it_reports() -> None:
    assert KERNEL_NUMBERS in SUITES
    assert KERNEL_NUMBERS.id == SUITE_ID


def test_verification_by_the_kernels_is_that_in_torch_or_told(monkeypatch: pytest.MonkeyPatch) -> None:
    result = check_kernel_numbers(CONTEXT, lambda _profile: SMALL[:1])
    assert (result.verdict, result.missed) == (Verdict.VALID, ())
    assert result.reached["verifications compared"] == result.invariants["ST-1"] > 100
    right = verify.recover_or_bonus
    monkeypatch.setattr(verify, "recover_or_bonus", lambda *asked: right(*asked).clamp(max=1023))
    violation = check_kernel_numbers(CONTEXT, lambda _profile: SMALL[:1]).failures[0].violation
    assert (violation.invariant, violation.found) == ("ST-1", "the token behind them, row 2: 1023 by the kernel")
