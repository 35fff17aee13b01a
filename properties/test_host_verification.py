"""Rejection sampling on the host comes to what `verification.py` comes to in torch, from equal noise; both in an engine."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest
import torch

from engine_under_test import Engine, EngineConfig, FingerprintRunner, Request, SamplingParams
from engine_under_test.drafting import Drafting
from engine_under_test.execution.runner import Runner
from engine_under_test.execution.transformer import TransformerRunner
from engine_under_test.model.weights import LlamaConfig, tiny_random
from engine_under_test.sampling.draft_model import DraftModel
from engine_under_test.sampling.host_verification import Address, laws_of, verify_row
from engine_under_test.sampling.noise import PhiloxNoise
from engine_under_test.sampling.processed import RowState, processed
from engine_under_test.sampling.sampler import Draws
from engine_under_test.sampling.speculation import Ask, Declaration, Knowledge, Proposal, Repair
from engine_under_test.sampling.verification import rows_of, verify
from engine_under_test.seams import Noise
from engine_under_test.types import History, RowId

NOISE = PhiloxNoise()
VOCAB = 16


@pytest.mark.parametrize("seed", range(60))
def test_drafts_kept_and_the_token_behind_them_are_those_of_torch(seed: int) -> None:
    chance = np.random.default_rng(seed)
    width, size = int(chance.integers(1, 6)), int(chance.choice([2, 5, 33]))
    target, proposed = (chance.dirichlet(np.full(size, 0.4), width + more) for more in (1, 0))
    if seed % 5 == 0:
        proposed = target[:-1].copy()  # all are kept
    drafts = tuple(int(chance.choice(size, p=law)) for law in proposed)
    position = int(chance.integers(1, 90))
    address = Address(seed * 977 + 2**40, seed % 3, position)
    ask = Ask(RowId("a", address.choice, 1, 0), range(position), SamplingParams(seed=address.seed), width, 1)
    before = target.copy(), proposed.copy()
    found = verify_row(address, drafts, proposed, target, NOISE)
    rows = rows_of([ask], Proposal((drafts,), torch.from_numpy(proposed)), torch.from_numpy(target))
    num_accepted, tokens = verify(rows, NOISE)
    assert found == (int(num_accepted), int(tokens))
    assert (target == before[0]).all()
    assert (proposed == before[1]).all()


OPTIONS = (
    SamplingParams(temperature=0.7),
    SamplingParams(temperature=2.0, top_k=4),
    SamplingParams(temperature=1.0, top_p=0.6, min_p=0.02),
    SamplingParams(temperature=1.0, stop_token_ids=(3, 5), min_tokens=4),
)


@pytest.mark.parametrize("params", OPTIONS, ids=["temperature", "top-k", "top-p and min-p", "min_tokens"])
def test_the_law_of_a_place_is_the_one_in_torch(params: SamplingParams) -> None:
    logits = np.random.default_rng(7).normal(0, 2, (9, 33))
    positions = [2 + place for place in range(9)]
    states = [RowState(params, History((), (0,) * (position - 2))) for position in positions]
    expected = processed(torch.from_numpy(logits), states).numpy()
    draws = Draws([params] * 9, [0] * 9, positions, [2] * 9)
    assert np.abs(laws_of(logits.copy(), draws) - expected).max() < 1e-12


class Guessing:
    """Draws drafts from a law that leans to low tokens, and says so."""

    def __init__(self) -> None:
        weights = 0.8 ** np.arange(VOCAB)
        self.law = weights / weights.sum()

    declaration = Declaration("guessing", 3, Knowledge.FULL)

    def propose(self, asks: Sequence[Ask], noise: Noise) -> Proposal:
        del noise
        drafts = tuple(self._draw(ask) for ask in asks)
        return Proposal(drafts, np.tile(self.law, (sum(map(len, drafts)), 1)))

    def _draw(self, ask: Ask) -> tuple[int, ...]:
        chance = random.Random(ask.params.seed * 1000 + len(ask.tokens))
        return tuple(chance.choices(range(VOCAB), self.law, k=min(ask.width, 3)))

    def repair(self, repairs: Sequence[Repair]) -> None:
        """Nothing is kept."""


CONFIG = EngineConfig(num_blocks=600, block_size=4, max_tokens_per_step=2048, max_num_seqs=200, vocab_size=VOCAB)


def _first_pairs(runner: Runner, drafting: Drafting | None, base: int, num: int) -> npt.NDArray[np.float64]:
    """How often each pair of the second and third token comes, over many seeds."""
    engine = Engine(CONFIG, runner, drafting=drafting)
    counts: Counter[tuple[int, int]] = Counter()
    for begin in range(0, num, 200):
        for number in range(begin, begin + 200):
            sampling = SamplingParams(
                max_tokens=4, temperature=1.5, seed=base + number, top_k=3, allowed_token_ids=(1, 2, 5, 9)
            )
            assert engine.submit(Request(f"r{number}", (3, 1, 4), sampling)).is_accepted
        while engine.has_work:
            engine.step()
        told: dict[str, tuple[int, ...]] = {}
        for output in engine.take_outputs():
            told[output.request_id] = told.get(output.request_id, ()) + output.token_ids
        counts.update((tokens[1], tokens[2]) for tokens in told.values())
    found = np.zeros((VOCAB, VOCAB))
    for pair, count in counts.items():
        found[pair] = count / num
    return found


def test_drafts_from_a_law_leave_the_distribution_as_it_is() -> None:
    """Two samples of 4000, of equal seeds whenever this runs. Of one law with 16 pairs they would be 0.033 apart on average."""
    drafting = Drafting(Guessing())
    one = _first_pairs(FingerprintRunner(600, 4, VOCAB), drafting, 0, 4000)
    other = _first_pairs(FingerprintRunner(600, 4, VOCAB), None, 10**6, 4000)
    assert 0 < drafting.num_accepted < drafting.num_proposed
    assert abs(one - other).sum() / 2 < 0.05


@pytest.mark.parametrize("temperature", [0.0, 1.0], ids=["greedy", "warm"])
def test_a_draft_model_speaks_for_a_language_model_and_its_store_is_empty_behind_it(temperature: float) -> None:
    shape = LlamaConfig(VOCAB, 32, 2, 2, 1, 16, 48)
    weights, smaller = tiny_random(shape, seed=5), tiny_random(LlamaConfig(VOCAB, 16, 1, 2, 1, 8, 24), seed=5)
    config = EngineConfig(num_blocks=12, block_size=4, max_tokens_per_step=12, max_num_seqs=4, vocab_size=VOCAB)
    model = DraftModel(TransformerRunner(smaller, 20, 4), 20, 4, max_drafts=3)
    sampling = SamplingParams(max_tokens=9, temperature=temperature, repetition_penalty=1.2, logprobs=1)

    def serve(drafting: Drafting | None) -> dict[str, tuple[int, ...]]:
        engine = Engine(config, TransformerRunner(weights, 12, 4, is_batch_invariant=True), drafting=drafting)
        for number in range(5):
            assert engine.submit(Request(f"r{number}", tuple(range(number + 2)), sampling)).is_accepted
        told: dict[str, tuple[int, ...]] = {}
        while engine.has_work:
            engine.step()
            for output in engine.take_outputs():
                told[output.request_id] = told.get(output.request_id, ()) + output.token_ids
                assert len(output.logprobs) == len(output.token_ids)
                assert [each.tokens[0] for each in output.logprobs] == list(output.token_ids)
        return told

    drafting = Drafting(model)
    found = serve(drafting)
    assert {len(tokens) for tokens in found.values()} == {9}
    assert drafting.num_proposed > 0
    assert model.num_free_blocks == 20
    if temperature == 0:
        assert found == serve(None)
