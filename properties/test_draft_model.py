"""A draft model draws from the law that it says, repairs its own KV, and with it nothing of what is said changes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch

from engine_under_test.execution.transformer import TransformerLaunch, TransformerRunner
from engine_under_test.model.weights import LlamaConfig, LlamaWeights, tiny_random
from engine_under_test.sampling.draft_model import DraftModel
from engine_under_test.sampling.noise import PhiloxNoise
from engine_under_test.sampling.processed import RowState, processed
from engine_under_test.sampling.speculation import Ask, Lossless, Repair
from engine_under_test.sampling.verification import Law, draw
from engine_under_test.types import History, Plan, Reservation, RowId, SamplingParams
from properties.doubles import RecordingNoise

CONFIG = LlamaConfig(
    vocab_size=24, hidden_size=16, num_layers=1, num_heads=2, num_kv_heads=1, head_size=8, intermediate_size=32
)
BLOCKS, SIZE = 12, 4
WARM = SamplingParams(temperature=1.3, top_k=9, top_p=0.9, repetition_penalty=1.2, seed=11)
TEXT = (3, 7, 7, 1, 20, 5)


def weights(seed: int = 1) -> LlamaWeights:
    return tiny_random(CONFIG, seed)


def drafter(num_blocks: int = BLOCKS, seed: int = 1) -> DraftModel:
    return DraftModel(TransformerRunner(weights(seed), num_blocks, SIZE), num_blocks, SIZE, max_drafts=3)


def ask(tokens: Sequence[int] = TEXT, name: str = "a", params: SamplingParams = WARM, width: int = 3) -> Ask:
    return Ask(RowId(name, 0, 1, 0), tuple(tokens), params, width, 4)


def law_behind(tokens: Sequence[int], params: SamplingParams = WARM) -> torch.Tensor:
    """The processed law of a model that has computed nothing before."""
    fresh = drafter()
    fresh.propose([ask(tokens, params=params, width=1)], PhiloxNoise())
    proposal = fresh.propose([ask(tokens, params=params, width=1)], PhiloxNoise())
    assert proposal.probabilities is not None
    return proposal.probabilities[0]


def test_each_draft_is_drawn_from_the_law_that_is_told_of_it() -> None:
    noise = RecordingNoise(PhiloxNoise())
    proposal = drafter().propose([ask(), ask((2, 2), "b")], noise)
    assert proposal.widths == [3, 3]
    assert proposal.probabilities is not None
    place = 0
    for asked, drafts in zip((ask(), ask((2, 2), "b")), proposal.drafts, strict=True):
        for number, token in enumerate(drafts):
            law = proposal.probabilities[place]
            position = np.array([len(asked.tokens) + number], np.uint32)
            alone = draw(Law(law[None], torch.zeros((1, 1), dtype=torch.int64)), np.array([11], np.uint64),
                         np.zeros(1, np.uint32), position, PhiloxNoise())  # fmt: skip
            assert alone.tolist() == [token]
            torch.testing.assert_close(law, law_behind((*asked.tokens, *drafts[:number])), atol=1e-6, rtol=0)
            place += 1
    drawn = [(each.position, each.purpose) for each in noise.take_addresses()]
    assert sorted(drawn) == sorted([(at, 3) for at in (2, 3, 4, 6, 7, 8)])


def test_its_law_is_the_models_own_processed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Against logits of a runner that was given the whole text at once."""
    runner = TransformerRunner(weights(), BLOCKS, SIZE)
    model = DraftModel(runner, BLOCKS, SIZE)
    seen: list[torch.Tensor] = []
    launch = runner.launch

    def watched(plan: Plan, reservation: Reservation) -> TransformerLaunch:
        found = launch(plan, reservation)
        seen.append(found.logits)
        return found

    monkeypatch.setattr(runner, "launch", watched)
    proposal = model.propose([ask(width=1)], PhiloxNoise())
    right = processed(seen[0], [RowState(WARM, History(TEXT[:4], TEXT[4:]))])
    assert isinstance(proposal.probabilities, torch.Tensor)
    assert torch.equal(proposal.probabilities, right)
    assert int((right > 0).sum()) <= 9


@pytest.mark.parametrize("accepted", [0, 1, 3], ids=["all fell", "one stood", "all stood"])
def test_what_was_rejected_leaves_no_trace(accepted: int) -> None:
    model = drafter()
    (drafts,) = model.propose([ask()], PhiloxNoise()).drafts
    text = (*TEXT, *drafts[:accepted], (drafts[min(accepted, 2)] + 1) % 24)
    model.repair([Repair(ask().row, accepted, len(text))])
    found = model.propose([ask(text)], PhiloxNoise())
    fresh = drafter().propose([ask(text)], PhiloxNoise())
    assert found.drafts == fresh.drafts
    assert found.probabilities is not None
    assert fresh.probabilities is not None
    torch.testing.assert_close(found.probabilities, fresh.probabilities, atol=1e-6, rtol=0)


def test_a_row_that_skipped_steps_or_was_never_repaired_is_caught_up() -> None:
    model = drafter()
    model.propose([ask()], PhiloxNoise())
    text = (*TEXT, 9, 9, 9, 9, 9)
    assert model.propose([ask(text)], PhiloxNoise()).drafts == drafter().propose([ask(text)], PhiloxNoise()).drafts


def test_without_blocks_a_row_gets_no_drafts_and_ended_rows_give_theirs_back() -> None:
    model = drafter(num_blocks=4)
    assert model.propose([ask(), ask(TEXT, "b")], PhiloxNoise()).widths == [3, 3]
    assert model.num_free_blocks == 0
    assert model.propose([ask((1, 2), "c")], PhiloxNoise()).widths == [0]
    model.repair([Repair(ask(name="a").row, 0, 0)])
    assert model.propose([ask((1, 2), "c")], PhiloxNoise()).widths == [3]
    model.repair([Repair(ask(name=name).row, 0, 0) for name in "abc"])
    assert model.num_free_blocks == 4


def test_a_draft_model_that_is_the_target_keeps_every_draft() -> None:
    plug_in = Lossless(drafter())
    asks = [ask(params=replace(WARM, seed=seed), name=str(seed)) for seed in range(3)]
    proposal = plug_in.propose(asks, PhiloxNoise())
    assert proposal.probabilities is not None
    laws = []
    for number, drafts in enumerate(proposal.drafts):
        laws += [*proposal.probabilities[3 * number : 3 * number + 3], law_behind((*TEXT, *drafts), asks[number].params)]
    kept, tokens = plug_in.verify(asks, proposal, torch.stack(laws), PhiloxNoise())
    assert kept.tolist() == [3, 3, 3]
    assert all(law[token] > 0 for law, token in zip(laws[3::4], tokens.tolist(), strict=True))
