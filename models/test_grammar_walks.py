"""Claims about grammars in walks: their law is the library's, they are met by everything, and a wrong mask does not pass."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import islice

import numpy as np
import numpy.typing as npt
import pytest

from engine_under_test.errors import BadInput
from engine_under_test.sampling.grammar import CompiledGrammars
from engine_under_test.types import GrammarSpec
from models.build import world_from
from models.compiled import compiled
from models.grammar_suite import GRAMMAR_WALKS, SHAPES, floors
from models.machines.driving import Driver
from models.reach import Reach
from models.walk import walk_ops
from models.walk_suite import run_and_check
from properties.op import Op, OpKind
from properties.small_grammars import GRAMMARS, STOPS, VOCAB_SIZE, forbidden
from properties.suite import Profile, SuiteContext
from properties.verdict import Verdict

QUICK = SuiteContext(Profile.QUICK, 0x51, shrink_s=2.0)


@pytest.mark.parametrize("spec", GRAMMARS, ids=lambda spec: spec.sources[0])
def test_the_law_of_a_grammar_is_what_the_library_says(spec: GrammarSpec) -> None:
    """Behind every output that may be, up to four tokens."""
    outputs: list[tuple[int, ...]] = [()]
    for output in outputs:
        masked = forbidden(spec, output, STOPS)
        assert set(np.flatnonzero(~compiled(VOCAB_SIZE).allowed(spec, output, STOPS)).tolist()) == set(masked), output
        following = [token for token in range(VOCAB_SIZE) if token not in masked]
        if len(output) < 4:
            outputs += [(*output, token) for token in following]
    assert len(outputs) > 10


def test_walks_meet_grammars_in_every_way() -> None:
    found = GRAMMAR_WALKS.run(QUICK)
    assert (found.verdict, found.missed) == (Verdict.VALID, ())


def test_what_is_rarest_is_reached_before_chance_begins() -> None:
    shape = SHAPES["grammars-scarce"]
    driver = Driver(shape.spec())
    driver.run(shape.begins)
    assert driver.reached()[0][Reach.GRAMMAR_RESUMED] > floors(Profile.PR)[Reach.GRAMMAR_RESUMED]
    assert (driver.violation, tuple(driver.live)) == (None, ())


@pytest.mark.parametrize("label", ["grammars-deeper", "grammars-speculating", "grammars-drawn"])
def test_a_mask_that_is_a_token_late_is_found(label: str, monkeypatch: pytest.MonkeyPatch) -> None:
    right = CompiledGrammars.allowed

    def late(self: CompiledGrammars, spec: GrammarSpec, output: Sequence[int], ends: Collection[int]) -> npt.NDArray[np.bool_]:
        return right(self, spec, output[:-1] if len(output) > 1 else output, ends)

    monkeypatch.setattr(CompiledGrammars, "allowed", late)
    shape = SHAPES[label]
    found = run_and_check(shape.spec(), (*islice(walk_ops(3, shape), 150), Op(OpKind.DRAIN)))
    assert found is not None
    assert found.invariant in {"SE-1", "SE-2", "ST-1"}


def test_a_world_of_another_vocabulary_has_no_grammars() -> None:
    with pytest.raises(BadInput, match="a world with grammars has a vocabulary of 16 tokens, found 32"):
        world_from({"target": "assay", "config": {"vocab_size": 32}, "grammars": True})
