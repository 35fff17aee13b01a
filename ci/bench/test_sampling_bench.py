"""Claims about the benchmark of sampling: both sides are asked for the same steps, and what is counted is whole."""

from __future__ import annotations

import torch

from ci.bench.sampling import LOADS, Load, _our_step, _their_step, check_rate, rows_of, time_pair, time_verification
from differential.verification_cases import FOUR
from engine_under_test.types import SamplingParams


def test_both_sides_keep_the_same_tokens() -> None:
    """With a vocabulary's only survivor left by top-p both must name it; so the steps in front of the draw are the same."""
    load = Load(4, 1)
    logits, texts = rows_of(load, 3)
    assert list(_our_step(load, logits, texts, 3)()) == list(_their_step(load, logits, texts, 3)())


def test_every_step_counts_on_both_sides() -> None:
    """A bad word stands first, then the stop token before its time, then a token that is penalised; a biased one wins."""
    load = Load(1, 1)
    logits, texts = rows_of(load, 3)
    logits.clamp_(max=5.0)
    penalised = int(texts[0, 0])
    for token, value in ((1234, 20.0), (2, 19.0), (penalised, 12.0), (17, 10.5)):
        logits[0, token] = value
    assert list(_our_step(load, logits, texts, 3)()) == list(_their_step(load, logits, texts, 3)()) == [17]


def test_neither_side_changes_the_logits() -> None:
    load = Load(2, 50)
    logits, texts = rows_of(load, 1)
    before = logits.clone()
    time_pair(load, 1, repeats=1)
    _our_step(load, logits, texts, 1)(), _their_step(load, logits, texts, 1)()
    assert torch.equal(before, logits)


def test_a_rate_counts_every_verification() -> None:
    assert check_rate(FOUR, 1, rows=256, batches=2) > 0


def test_a_step_of_drafts_is_timed_in_its_parts() -> None:
    assert set(time_verification(2, 2, 1)) == {"draw", "processed", "verify"}
    assert all(seconds > 0 for seconds in time_verification(2, 2, 1).values())


def test_loads_are_with_and_without_top_k() -> None:
    assert {load.top_k > 0 for load in LOADS} == {True, False}
    assert SamplingParams().top_k == 0
