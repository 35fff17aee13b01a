"""What can not be read is a verdict of its own in every suite of statistics: never a place in a table, never a crash."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from differential.exact_race import race_violation
from differential.processed_stats import check_processed
from differential.sampler_law import check_sampler_law
from differential.sampling_stats import check_sampler
from differential.shared_law import SHARED
from differential.verification_cases import ENGINE, RACING, Speculator
from differential.verification_law import check_verification
from differential.verification_power import calibrate_draws
from differential.well_formed import Malformed, answered, drafts_with_laws, whole_numbers
from engine_under_test.sampling import sampler, torch_sampler
from engine_under_test.sampling.picking import Race
from engine_under_test.sampling.sampler import Sampled
from engine_under_test.sampling.speculation import Proposal
from engine_under_test.sampling.verification import Rows, Verdicts
from properties.suite import CheckResult, Profile, SuiteContext
from properties.verdict import Verdict

QUICK = SuiteContext(Profile.QUICK, 5, shrink_s=0.5)


@pytest.mark.parametrize(
    ("found", "told"),
    [
        ([0, 4], "token of row 1: 4, out of 0 to 3"),
        ([0, -1], "token of row 1: -1, out of 0 to 3"),
        ([0.0, float("nan")], "token of row 1: nan"),
        ([0, None], "token of row 1: None"),
        ([0], "token for 2 rows, in the shape [1]"),
        (torch.zeros(2, 1, dtype=torch.int64), "token for 2 rows, in the shape [2, 1]"),
        (None, "token for 2 rows, in the shape []"),
    ],
    ids=["past the end", "negative", "not a number", "nothing in one", "too few", "a column", "nothing"],
)
def test_what_can_not_be_read_is_told(found: object, told: str) -> None:
    with pytest.raises(Malformed) as raised:
        whole_numbers(found, "token", 2, 0, 3)
    assert str(raised.value).startswith(told)


def test_what_can_be_read_is_read() -> None:
    for found in ([3, 0], np.array([3, 0], np.uint32), torch.tensor([3, 0])):
        assert whole_numbers(found, "token", 2, 0, np.array([3, 0])).tolist() == [3, 0]
    with pytest.raises(Malformed, match="token of row 1: 1, out of 0 to 0"):
        whole_numbers([3, 1], "token", 2, 0, np.array([3, 0]))


def test_an_exception_is_an_answer_unless_it_is_named() -> None:
    def fails() -> int:
        raise IndexError("index 9 is out of bounds")

    with pytest.raises(Malformed, match="verification raised IndexError: index 9"):
        answered("verification", fails)
    with pytest.raises(IndexError):
        answered("verification", fails, but=(IndexError,))


def test_a_proposal_without_a_law_for_each_draft_is_told() -> None:
    laws = torch.full((2, 4), 0.25)
    assert [drafts for drafts, _laws in drafts_with_laws(2, Proposal(((1, 3), ()), laws), 4)] == [(1, 3), ()]
    for proposal, told in (
        (Proposal(((1, 4), ()), laws), "draft of row 1: 4"),
        (Proposal(((1, 3),), laws), "drafts of 1 rows"),
        (Proposal(((1, 3), ()), laws[:1]), r"laws in the shape \[1, 4\] for 2"),
        (Proposal(((1, 3), ())), r"laws in the shape \[0, 4\] for 2"),
        (Proposal(((1, 3), ()), laws * torch.nan), "law of draft 0"),
        (Proposal(((1, 3), ()), laws * 0.9), "sum to 0.9"),
    ):
        with pytest.raises(Malformed, match=told):
            drafts_with_laws(2, proposal, 4)


def _spoilt(right: Speculator, spoil: Callable[[Rows, Verdicts], Verdicts]) -> Speculator:
    return replace(right, verify=lambda rows, noise, pick: spoil(rows, right.verify(rows, noise, pick)))


def _high_token(rows: Rows, found: Verdicts) -> Verdicts:
    tokens = found.tokens.clone()
    tokens[-1] = rows.vocab_size
    return found._replace(tokens=tokens)


def _high_count(rows: Rows, found: Verdicts) -> Verdicts:
    return found._replace(num_accepted=rows.num_drafts + 1)


def _negative_count(_rows: Rows, found: Verdicts) -> Verdicts:
    return found._replace(num_accepted=found.num_accepted - 3)


def _no_numbers(_rows: Rows, found: Verdicts) -> Verdicts:
    return found._replace(tokens=found.tokens.double() * torch.nan)


@pytest.mark.parametrize("spoil", [_high_token, _high_count, _negative_count, _no_numbers])
@pytest.mark.parametrize("where", ["who", "racing", "shared"])
def test_a_verification_that_says_nothing_is_invalid(where: str, spoil: Callable[[Rows, Verdicts], Verdicts]) -> None:
    parts = {"who": ENGINE, "racing": RACING, "shared": SHARED}
    parts[where] = _spoilt(parts[where], spoil)
    result = check_verification(QUICK, **parts)
    assert result.verdict is Verdict.INVALID
    assert result.failures[0].violation.expected == "for each row a number of its drafts and a token of the vocabulary"


def test_what_a_power_is_stated_of_may_not_be_unreadable_either() -> None:
    with pytest.raises(Malformed, match="out of 0 to 2"):
        calibrate_draws(1, np.random.default_rng(1), 0.1, _spoilt(ENGINE, _high_token))


def test_a_race_won_by_nobody_is_invalid() -> None:
    class Past(Race):
        def __call__(self, weights: torch.Tensor, uniforms: torch.Tensor) -> torch.Tensor:
            return super().__call__(weights, uniforms) + weights.shape[1]

    found = race_violation(Past())
    assert found is not None
    assert "out of 0 to 2" in found.found


Change = Callable[[list[Any]], list[Any]]
CHANGES: dict[str, Change] = {
    "past the end": lambda tokens: [*tokens[:-1], 1 << 20],
    "negative": lambda tokens: [*tokens[:-1], -1],
    "not a number": lambda tokens: [*tokens[:-1], float("nan")],
    "too few": lambda tokens: tokens[:-1],
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_tokens_that_are_none_are_invalid_in_every_suite_of_a_sampler(change: Change) -> None:
    def told(logits: torch.Tensor, *asked: Any) -> Sampled:
        found = torch_sampler.sample_and_tell(logits, *asked)
        return found._replace(tokens=change(list(found.tokens)))

    results: tuple[CheckResult, ...] = (
        check_sampler(QUICK, lambda *asked: np.array(change(sampler.sample(*asked).tolist()))),
        check_processed(QUICK, lambda *asked: change(torch_sampler.sample(*asked))),
        check_sampler_law(QUICK, told),
    )
    for result in results:
        assert result.verdict is Verdict.INVALID
        assert result.failures[0].violation.expected == "a token of the vocabulary for each row"
