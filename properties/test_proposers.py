"""Proposers name what they say they name, and the contract refuses what was not declared."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from engine_under_test.errors import ConfigError, ProtocolError
from engine_under_test.sampling.noise import PhiloxNoise
from engine_under_test.sampling.proposers import PromptLookup, Scripted
from engine_under_test.sampling.speculation import Ask, Declaration, Knowledge, Lossless, Proposal, Proposer, Repair
from engine_under_test.seams import Noise
from engine_under_test.types import RowId, SamplingParams

A, B = RowId("a", 0, 1, 0), RowId("b", 0, 1, 0)
NOISE = PhiloxNoise()


def ask(tokens: Sequence[int], width: int = 3, row: RowId = A) -> Ask:
    return Ask(row, tuple(tokens), SamplingParams(), width, 1)


@pytest.mark.parametrize(
    ("tokens", "width", "drafts"),
    [
        pytest.param((1, 2, 3, 4, 1, 2), 2, (3, 4), id="what followed the same two tokens"),
        pytest.param((1, 2, 9, 1, 2, 7, 1, 2), 1, (7,), id="the latest place counts"),
        pytest.param((5, 1, 2, 8, 1, 2, 9, 5, 1, 2), 1, (8,), id="the longest ending counts before the latest"),
        pytest.param((4, 4), 3, (4,), id="no more than stands there"),
        pytest.param((1, 2, 3), 3, (), id="nothing that was there before"),
        pytest.param((1,), 3, (), id="a single token"),
        pytest.param((1, 2, 1, 2), 0, (), id="no draft wanted"),
    ],
)
def test_prompt_lookup_names(tokens: tuple[int, ...], width: int, drafts: tuple[int, ...]) -> None:
    assert PromptLookup(max_drafts=3).propose([ask(tokens, width)], NOISE) == Proposal((drafts,))


def test_prompt_lookup_refuses_sizes_that_are_none() -> None:
    with pytest.raises(ConfigError, match="least 3, most 2"):
        PromptLookup(least=3, most=2)


def test_a_script_fixes_how_many_drafts_are_the_truth() -> None:
    def truth(tokens: Sequence[int], count: int) -> list[int]:
        return [(len(tokens) + place) % 5 for place in range(count)]

    scripted = Scripted(truth, (2, 0, 3), vocab_size=5)
    for count in (2, 0, 3, 3):
        (drafts,) = scripted.propose([ask((0, 0))], NOISE).drafts
        assert [draft == true for draft, true in zip(drafts, truth((0, 0), 3), strict=True)] == [
            place < count for place in range(3)
        ]
    assert scripted.propose([ask((0, 0), 2, B)], NOISE).drafts == (tuple(truth((0, 0), 2)),)
    scripted.repair([Repair(A, 2, 5), Repair(A, 0, 0)])
    assert scripted.repairs[-1].confirmed == 0
    assert scripted.propose([ask((0, 0))], NOISE).drafts[0][:2] == tuple(truth((0, 0), 2))


class Wrong:
    """A proposer that does not do what it declares."""

    def __init__(self, knowledge: Knowledge, proposal: Proposal) -> None:
        self.declaration = Declaration("wrong", 2, knowledge)
        self._proposal = proposal

    def propose(self, asks: Sequence[Ask], noise: Noise) -> Proposal:
        del asks, noise
        return self._proposal

    def repair(self, repairs: Sequence[Repair]) -> None:
        del repairs


@pytest.mark.parametrize(
    ("knowledge", "proposal", "sentence"),
    [
        pytest.param(Knowledge.CERTAIN, Proposal(()), "each of 1 rows", id="a row without drafts"),
        pytest.param(Knowledge.CERTAIN, Proposal(((1, 2, 3),)), "may propose 2 drafts for 'a'", id="more than declared"),
        pytest.param(Knowledge.CERTAIN, Proposal(((1,),), torch.eye(1)), "found probabilities", id="certain, with a law"),
        pytest.param(Knowledge.FULL, Proposal(((1,),)), "found no probabilities", id="a law declared, and none told"),
        pytest.param(Knowledge.FULL, Proposal(((1, 2),), torch.eye(1)), "each of 2 drafts", id="a draft without a law"),
    ],
)
def test_a_proposal_that_was_not_declared_is_refused(knowledge: Knowledge, proposal: Proposal, sentence: str) -> None:
    with pytest.raises(ProtocolError, match=sentence):
        Lossless(Wrong(knowledge, proposal)).propose([ask((1, 2))], NOISE)


def test_the_plug_in_proposes_verifies_and_repairs() -> None:
    scripted = Scripted(lambda tokens, count: [len(tokens) % 3] * count, (1,), vocab_size=3)
    plug_in = Lossless(scripted)
    asks = [ask((0, 0), 2)]
    proposal = plug_in.propose(asks, NOISE)
    kept, tokens = plug_in.verify(asks, proposal, torch.eye(3)[[2, 2, 2]], NOISE)
    assert (proposal.drafts, kept.tolist(), tokens.tolist()) == (((2, 0),), [1], [2])
    plug_in.repair([Repair(A, 1, 4)])
    assert scripted.repairs == [Repair(A, 1, 4)]
    assert plug_in.declaration.temporary_slots(7) == 4
    assert isinstance(scripted.declaration, Declaration)
    _checked: Proposer = scripted
