"""Claims about the statistics of the real model: its test holds both rates that it states, and its input is sound."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from scipy import special, stats

from differential import smollm2_stats
from differential.error_budget import ENTRIES, least_favourable
from differential.likelihood_ratio import likelihood_statistic, limit, p_bound, power_of, twice_g
from differential.smollm2_stats import CHOICES, TEXTS, RememberingRunner, check_first_positions, drawn, places
from engine_under_test.config import EngineConfig
from engine_under_test.engine import Engine
from engine_under_test.execution.transformer import TransformerRunner
from engine_under_test.model.weights import LlamaConfig, tiny_random
from properties.suite import Profile, SuiteContext
from properties.verdict import Verdict

EQUAL = [1 / 16] * 16


def test_without_the_model_it_is_unknown_and_says_how_to_have_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smollm2_stats, "model_folder", lambda _name: None)
    found = check_first_positions(SuiteContext(Profile.PR, 1))
    assert found.verdict is Verdict.UNKNOWN
    assert "assay model fetch" in found.note


def test_every_text_has_its_entry_in_the_budget() -> None:
    assert {f"smollm2-first-{number + 1}" for number in range(len(TEXTS))} <= {entry.id for entry in ENTRIES}


# The test of equal cells


def _twice_g(num: int, law: Sequence[float], repetitions: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    counts = np.random.default_rng(num).multinomial(num, law, size=repetitions)
    found: np.ndarray[tuple[int], np.dtype[np.float64]] = 2 * special.xlogy(counts, counts * 16 / num).sum(axis=1)
    return found


@pytest.mark.parametrize("num", [64, 640, 2560])
@pytest.mark.parametrize("alpha", [1e-1, 1e-2, 1e-3])
def test_false_alarms_stay_below_their_rate_however_few_the_samples(num: int, alpha: float) -> None:
    assert (_twice_g(num, EQUAL, 100_000) >= limit(num, 16, alpha)).mean() <= alpha


def test_the_bound_lies_above_the_tail_where_that_can_be_summed_and_near_it() -> None:
    """Two cells: the tail of 2 G is a sum of binomial terms."""
    x = np.arange(401)
    statistic = 2 * (special.xlogy(x, x / 200) + special.xlogy(400 - x, (400 - x) / 200))
    for least in (10.0, 20.0, 33.0):
        tail = float(stats.binom.pmf(x, 400, 0.5)[statistic >= least].sum())
        assert tail <= p_bound(400, 2, least) <= 100 * tail


@pytest.mark.parametrize("num", [640, 2560])
def test_the_effect_that_is_stated_is_found_as_often_as_stated_in_whatever_direction(num: int) -> None:
    one = likelihood_statistic("x", "", np.full(16, num // 16), 1e-8)
    assert one.verdict is Verdict.VALID
    assert one.power == pytest.approx(0.999)
    effect = one.tv_min
    one_cell = [1 / 16 + effect] + [1 / 16 - effect / 15] * 15
    for law in (least_favourable(EQUAL, effect).tolist(), one_cell):
        assert (_twice_g(num, law, 50_000) < limit(num, 16, 1e-8)).mean() < 0.0015
    assert power_of(num, 16, effect / 2, 1e-8) < 0.1


def test_counts_that_differ_are_rejected() -> None:
    counts = np.array([250, *[154] * 15])
    assert twice_g(counts) == pytest.approx(2 * sum(x * np.log(x / 160) for x in counts.tolist()))
    assert likelihood_statistic("x", "", counts, 1e-2).verdict is Verdict.INVALID
    assert likelihood_statistic("x", "", counts, 1e-8).verdict is Verdict.VALID


# What it is handed


def test_tokens_of_a_law_stand_evenly_in_it_and_others_do_not() -> None:
    chance = np.random.default_rng(1)
    law = chance.dirichlet(np.full(3000, 0.05))
    flat = law**0.8 / (law**0.8).sum()
    for drawn_from, is_even in ((law, True), (flat, False)):
        found = places(law, chance.choice(3000, 20_000, p=drawn_from), chance)
        assert bool(stats.kstest(found, "uniform").pvalue > 1e-4) is is_even


def test_logits_that_are_remembered_come_to_the_tokens_of_those_that_are_computed() -> None:
    shape = LlamaConfig(
        vocab_size=128, hidden_size=32, num_layers=2, num_heads=4, num_kv_heads=2, head_size=8, intermediate_size=64,
        ties_head=False,
    )  # fmt: skip
    weights = tiny_random(shape, seed=3)
    config = EngineConfig(num_blocks=64, vocab_size=128, max_num_seqs=CHOICES)
    found = []
    for kind in (TransformerRunner, RememberingRunner):
        runner = kind(weights, config.num_blocks, config.block_size)
        engine = Engine(config, runner)
        found.append([list(drawn(engine, text, tuple(map(ord, text)), 3, 5)) for text in ("a text", "another text")])
    assert found[0] == found[1]
    assert isinstance(runner, RememberingRunner)
    assert runner.num_computed == 2 * CHOICES
