"""The suite `structured-output` finds nothing in the engine as it is, and what was put into it."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from differential.grammar_masks import Masks
from differential.structured import check_structured
from engine_under_test.drafting import Drafting
from engine_under_test.sampling import adjustments
from engine_under_test.sampling.grammar import CompiledGrammars
from engine_under_test.types import GrammarKind, GrammarSpec, History, SamplingParams
from properties.grammar_cases import TEXTS, VOCAB_SIZE
from properties.suite import CheckResult, Profile, SuiteContext
from properties.verdict import Verdict

Mask = npt.NDArray[np.bool_]


def checked() -> CheckResult:
    return check_structured(SuiteContext(Profile.QUICK, 1, shrink_s=2.0))


def test_the_engine_keeps_every_output_within_its_grammar() -> None:
    result = checked()
    assert result.verdict is Verdict.VALID, (result.missed, result.failures)


def violated(result: CheckResult) -> str:
    assert result.verdict is Verdict.INVALID
    return result.failures[0].violation.invariant


def test_an_end_before_the_text_is_complete_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    true = CompiledGrammars.allowed

    def early(self: CompiledGrammars, spec: GrammarSpec, output: Sequence[int], ends: Collection[int]) -> Mask:
        mask = true(self, spec, output, ends)
        mask[list(ends)] = len(output) > 2 or mask[list(ends)]
        return mask

    monkeypatch.setattr(CompiledGrammars, "allowed", early)
    assert violated(checked()) == "RS-2"


def test_a_mask_that_is_too_narrow_is_found_though_every_output_is_within_its_grammar(monkeypatch: pytest.MonkeyPatch) -> None:
    true = CompiledGrammars.allowed

    def narrow(self: CompiledGrammars, spec: GrammarSpec, output: Sequence[int], ends: Collection[int]) -> Mask:
        mask = true(self, spec, output, ends)
        if mask.sum() > 2 and len(mask) == VOCAB_SIZE:  # the wide vocabulary is left alone: it is asked for masks first
            mask[np.flatnonzero(mask)[-1]] = False
        return mask

    monkeypatch.setattr(CompiledGrammars, "allowed", narrow)
    assert violated(checked()) in ("SE-1", "SE-2")


def test_a_mask_behind_the_prompt_and_the_output_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    true = adjustments.adjust

    def with_prompt(row: adjustments.Row, params: SamplingParams, history: History, *more: Any) -> None:
        true(row, params, History(history.prompt, (history.prompt + history.output)[1:]), *more)

    monkeypatch.setattr(adjustments, "adjust", with_prompt)
    assert violated(checked()) in ("RS-2", "SE-1", "SE-2", "SC-12")


def test_a_grammar_that_means_what_another_one_did_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    true = CompiledGrammars.allowed
    known: dict[tuple[int, GrammarKind, str], GrammarSpec] = {}

    def of_the_first(self: CompiledGrammars, spec: GrammarSpec, output: Sequence[int], ends: Collection[int]) -> Mask:
        alike = known.setdefault((id(self), spec.kind, spec.sources[0]), spec)
        return true(self, alike, output, ends)

    monkeypatch.setattr(CompiledGrammars, "allowed", of_the_first)
    masks = Masks(CompiledGrammars(TEXTS), Counter(), Counter())
    found = next(filter(None, (masks.made(random.Random(seed)) for seed in range(200))), None)
    masks.close()
    assert found is not None
    assert found.invariant == "RS-2"


def test_floors_that_are_not_reached_make_it_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Drafting, "ask", lambda *_: None)
    result = checked()
    assert result.verdict is Verdict.UNKNOWN
    assert any("drafts" in each for each in result.missed)
