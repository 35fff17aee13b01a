"""What counts as a divergence, and what as a tie; the stated tolerances find a position that is one off and two heads in
each other's place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch

from differential.compare import (
    TOLERANCES,
    TYPICAL,
    Emitted,
    against_oracle,
    against_plain,
    bitwise,
    endings,
    explained,
    law_of,
    tolerance_of,
    typical_of,
    typically_off,
)
from differential.doubles import with_queries_a_position_late, with_two_kv_heads_swapped
from differential.float_settings import VOCAB, requests
from differential.reference import reference_logits
from differential.running import run
from differential.setting import DTYPES, ModelSpec, Setting, World, weights_of
from engine_under_test.config import EngineConfig
from engine_under_test.model.weights import LlamaConfig, LlamaWeights
from engine_under_test.types import FinishReason, Request, SamplingParams

PROMPT = (3, 1, 4)
SHARE = 0.01


class Told:
    """An oracle that was told what to say."""

    name = "told"

    def __init__(self, rows: Sequence[Sequence[float]]) -> None:
        self._rows = torch.tensor(rows, dtype=torch.float64)

    def logits(self, tokens: tuple[int, ...], begin: int) -> torch.Tensor:
        assert len(tokens) - begin == len(self._rows)
        return self._rows


def emitted(tokens: tuple[int, ...], rows: Sequence[Sequence[float]], end: FinishReason = FinishReason.LENGTH) -> Emitted:
    request = Request("a", PROMPT, SamplingParams(max_tokens=len(tokens)))
    return Emitted(request, 0, tokens, torch.tensor(rows), end)


ROWS = [[0.0, 1.0, 4.0, 2.0], [3.0, 0.0, 1.0, -1.0]]
GOOD = emitted((2, 0), ROWS)


def test_a_run_as_the_oracle_has_it_does_not_diverge() -> None:
    assert against_oracle(GOOD, Told(ROWS), SHARE) is None
    assert against_plain(GOOD, GOOD, Told(ROWS), SHARE) is None
    assert bitwise(GOOD, GOOD) is None
    assert endings(GOOD) is None


def test_the_first_divergence_is_named_with_its_place_both_candidates_and_both_logits() -> None:
    found = against_oracle(emitted((2, 1), [ROWS[0], [0.0, 3.0, 1.0, -1.0]]), Told(ROWS), SHARE)
    assert found is not None
    assert (found.invariant, found.index, found.position, found.token, found.other) == ("SE-1", 1, len(PROMPT) + 1, 1, 0)
    assert [(each.by, each.of_token, each.of_other) for each in found.seen] == [("engine", 3.0, 0.0), ("told", 0.0, 3.0)]
    violation = found.violation()
    assert violation.subject == "request a, choice 0, token 1 (position 4)"
    assert violation.facts[1].split() == ["told", "token", "1:", "0.000000", "token", "0:", "3.000000"]


def test_a_logit_that_is_off_is_a_divergence_though_the_token_is_right() -> None:
    found = against_oracle(emitted((2, 0), [ROWS[0], [3.0, 0.0, 1.2, -1.0]]), Told(ROWS), SHARE)
    assert found is not None
    assert (found.invariant, found.index, found.token, found.other) == ("SE-3", 1, 0, 2)


def test_a_logit_that_is_not_a_number_is_a_divergence() -> None:
    found = against_oracle(emitted((2, 0), [ROWS[0], [3.0, 0.0, float("nan"), -1.0]]), Told(ROWS), SHARE)
    assert found is not None
    assert (found.invariant, found.other) == ("SE-3", 2)


NEAR = [[0.0, 4.0, 4.01, 2.0], ROWS[1]]  # the spread of the first row is 1.9, so that 0.019 is allowed, and twice that ties


# What an engine whose rounding differs would compute: the first two stand in each other's order.
TURNED = [[0.0, 4.005, 4.0, 2.0], ROWS[1]]


def test_a_tie_is_a_tie() -> None:
    other = emitted((1, 0), TURNED)
    assert against_oracle(other, Told(NEAR), SHARE) is None
    assert against_plain(other, emitted((2, 0), NEAR), Told(NEAR), SHARE) is None


def test_what_is_near_but_no_tie_diverges() -> None:
    other = emitted((1, 0), TURNED)
    found = against_oracle(other, Told(NEAR), SHARE / 10)
    assert found is not None
    assert (found.invariant, found.token, found.other) == ("SE-1", 1, 2)
    found = against_plain(other, emitted((2, 0), NEAR), Told(NEAR), SHARE / 10)
    assert found is not None
    assert [each.by for each in found.seen] == ["engine", "told", "plain run"]


def test_a_token_that_its_own_logits_do_not_lead_to_diverges_though_it_ties() -> None:
    found = against_oracle(emitted((1, 0), NEAR), Told(NEAR), SHARE)
    assert found is not None
    assert found.what == "token 1 where the engine's own logits lead to 2"


@pytest.mark.parametrize(("num_off", "is_found"), [(9, True), (7, False)], ids=["most rows", "some rows"])
def test_a_run_whose_rows_are_typically_off_diverges(num_off: int, is_found: bool) -> None:
    rows = [ROWS[0]] * 16
    off = [[0.0, 1.0, 4.0, 2.01]] * num_off + rows[num_off:]
    found = typically_off([emitted((2,) * 16, off)], Told(rows), 0.001)
    assert (found is not None) == is_found


def test_a_seeded_token_is_the_one_of_its_noise_and_no_other() -> None:
    flat = [[0.0, 0.01, 0.02, 0.0]]
    sampling = SamplingParams(max_tokens=1, temperature=1.0, seed=5)
    runs = [replace(emitted((token,), flat), request=Request("a", PROMPT, sampling)) for token in range(4)]
    found = [against_oracle(each, Told(flat), SHARE) for each in runs]
    assert [each is None for each in found].count(True) == 1
    assert {each.invariant for each in found if each} == {"SE-2"}


def test_stop_tokens_before_their_time_are_no_candidates() -> None:
    sampling = SamplingParams(max_tokens=2, min_tokens=1, stop_token_ids=(2,))
    run_ = replace(emitted((3, 0), ROWS), request=Request("a", PROMPT, sampling))
    assert against_oracle(run_, Told(ROWS), SHARE) is None
    assert against_oracle(emitted((3, 0), ROWS), Told(ROWS), SHARE) is not None
    found = against_oracle(replace(run_, tokens=(2, 0)), Told(ROWS), SHARE)
    assert found is not None
    assert (found.invariant, found.index, found.other) == ("SC-12", 0, 3)


FILTERED = SamplingParams(max_tokens=1, temperature=1.0, seed=5, top_k=2)


def filtered(token: int, rows: Sequence[Sequence[float]]) -> Emitted:
    return replace(emitted((token,), rows), request=Request("a", PROMPT, FILTERED))


def test_of_a_filtered_request_only_the_token_of_its_noise_is_right() -> None:
    near = [[0.0, 4.0, 3.9, 2.0]]
    found = [against_oracle(filtered(token, near), Told(near), SHARE) for token in range(4)]
    assert [each is None for each in found].count(True) == 1
    assert [each.what.count("may not come at all") for each in found if each] == [1, 0, 1]


def test_a_token_that_a_filter_drops_or_keeps_within_the_tolerance_is_a_tie() -> None:
    rows, turned = [[0.0, 2.0, 1.99, 1.995]], [[0.0, 2.0, 1.995, 1.99]]  # the second place hangs on 0.005
    tokens = [law_of(filtered(0, each), 0, torch.tensor(each[0])).token for each in (rows, turned)]
    assert tokens == [3, 1]
    run_, plain = filtered(tokens[0], rows), filtered(tokens[1], turned)
    assert against_oracle(run_, Told(turned), SHARE) is None
    assert against_plain(run_, plain, Told(turned), SHARE) is None
    found = against_oracle(run_, Told(turned), SHARE / 100)
    assert found is not None
    assert found.what == "token 3, which may not come at all, where told has 1"
    assert against_plain(run_, plain, Told(turned), SHARE / 100) is not None


def test_one_bit_is_enough_where_bits_are_promised() -> None:
    rows = torch.tensor(ROWS)
    rows[1, 3] = torch.nextafter(rows[1, 3], torch.tensor(9.0))
    found = bitwise(replace(GOOD, logits=rows), GOOD)
    assert found is not None
    assert (found.invariant, found.index, found.other) == ("SE-4", 1, 3)
    found = bitwise(replace(GOOD, tokens=(2, 1)), GOOD)
    assert found is not None
    assert found.invariant == "SE-2"


@pytest.mark.parametrize(
    ("run_", "said"),
    [
        (replace(GOOD, end=FinishReason.ERROR, message="NaN in row a"), "ended by error after 2 tokens NaN in row a"),
        (replace(GOOD, end=None), "ended by nothing"),
        (replace(GOOD, tokens=(2,), logits=torch.tensor(ROWS[:1])), "due: length after 2"),
        (replace(GOOD, request=Request("a", PROMPT, SamplingParams(max_tokens=2, stop_token_ids=(2,)))), "due: stop after 1"),
    ],
    ids=["an error", "no end", "an early end", "a stop token passed over"],
)
def test_an_end_that_is_not_due_is_a_divergence(run_: Emitted, said: str) -> None:
    found = endings(run_)
    assert found is not None
    assert found.invariant == "SC-12"
    assert said in found.what


def test_another_party_is_heard_once() -> None:
    found = against_oracle(emitted((2, 1), [ROWS[0], [0.0, 3.0, 1.0, -1.0]]), Told(ROWS), SHARE)
    assert found is not None
    assert explained(found, GOOD, Told(ROWS)) == found
    third = Told([[0.0] * 4, [7.0, 5.0, 0.0, 0.0]])
    third.name = "third"
    assert explained(found, GOOD, third).seen[-1] == replace(found.seen[-1], by="third", of_token=5.0, of_other=7.0)


MODELS = [
    ModelSpec("tiny", dtype, seed, LlamaConfig(VOCAB, 48, 2, heads, 2, 16, 64, ties_head=seed == 0))
    for dtype in DTYPES
    for seed, heads in enumerate((4, 2, 6))
]


@pytest.fixture(scope="module")
def runs() -> dict[ModelSpec, tuple[Emitted, ...]]:
    config = EngineConfig(num_blocks=64, block_size=4, vocab_size=VOCAB)
    return {model: run(World(model, config, Setting("batch")), requests(1)).emitted for model in MODELS}


class Wrong:
    """The reference on weights with a fault."""

    name = "wrong"

    def __init__(self, weights: LlamaWeights) -> None:
        self._weights = weights

    def logits(self, tokens: tuple[int, ...], begin: int) -> torch.Tensor:
        return reference_logits(self._weights, tokens, begin=begin)


@pytest.mark.parametrize("model", MODELS, ids=[model.words for model in MODELS])
@pytest.mark.parametrize(
    "fault",
    [with_queries_a_position_late, with_two_kv_heads_swapped],
    ids=["queries one position late", "two KV heads swapped"],
)
def test_the_tolerance_fails_a_fault_of_one_position_or_one_head_in_most_requests(
    model: ModelSpec, fault: Callable[[LlamaWeights], LlamaWeights], runs: dict[ModelSpec, tuple[Emitted, ...]]
) -> None:
    share = tolerance_of(DTYPES[model.dtype])
    right, wrong = Wrong(weights_of(model)), Wrong(fault(weights_of(model)))
    assert [each for each in runs[model] if against_oracle(each, right, share)] == []
    found = [each for each in runs[model] if against_oracle(each, wrong, share)]
    assert len(found) > len(runs[model]) / 2
    assert typically_off(runs[model], right, typical_of(DTYPES[model.dtype])) is None
    assert typically_off(runs[model], wrong, typical_of(DTYPES[model.dtype])) is not None


def test_each_type_in_which_an_engine_computes_has_a_tolerance() -> None:
    assert set(TOLERANCES) == set(TYPICAL) == set(DTYPES.values())
    assert all(TYPICAL[dtype] < TOLERANCES[dtype] for dtype in TOLERANCES)
