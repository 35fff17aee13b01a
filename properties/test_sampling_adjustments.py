"""Each step in front of the temperature, and each log-probability, against a plain float64 reference, alone and in order."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine_under_test.errors import RunnerError
from engine_under_test.sampling import adjustments as steps
from engine_under_test.sampling.logprobs import told
from engine_under_test.sampling.noise import PhiloxNoise
from engine_under_test.sampling.processed import RowState, processed
from engine_under_test.sampling.sampler import Draws, Sampled
from engine_under_test.sampling.sampler import sample_and_tell as by_numpy
from engine_under_test.sampling.torch_sampler import sample_and_tell as by_torch
from engine_under_test.types import History, LogprobsMode, SamplingParams

Floats = npt.NDArray[np.float64]
VOCABULARY = 11
tokens = st.integers(0, VOCABULARY - 1)
texts = st.lists(tokens, max_size=8).map(tuple)
rows = st.lists(st.sampled_from([0.0, 1.5, -2.0, 3.25, -math.inf, 1e30, -0.5]), min_size=VOCABULARY, max_size=VOCABULARY)


def after(row: list[float], step: Callable[..., None], *arguments: object) -> list[float]:
    found = np.array(row)
    step(found, *arguments)
    return found.tolist()  # type: ignore[no-any-return]  # numpy types `tolist` as Any


@given(rows, st.lists(tokens, max_size=4).map(tuple))
def test_only_allowed_tokens_are_left_and_none_named_leaves_all(row: list[float], allowed: tuple[int, ...]) -> None:
    expected = [value if token in allowed or not allowed else -math.inf for token, value in enumerate(row)]
    assert after(row, steps.keep_allowed, allowed) == expected


@settings(deadline=None)
@given(
    st.lists(st.integers(0, 2), max_size=7).map(tuple), st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=4).map(tuple))
)
def test_a_token_is_dropped_exactly_if_the_output_would_end_in_a_bad_word(
    output: tuple[int, ...], bad_words: list[tuple[int, ...]]
) -> None:
    row = [1.0] * 3
    ends = [any((*output, token)[-len(word) :] == word for word in bad_words) for token in range(3)]
    assert after(row, steps.drop_bad_words, bad_words, output) == [-math.inf if is_end else 1.0 for is_end in ends]


@given(rows, st.lists(st.tuples(tokens, st.sampled_from([-100.0, 0.25, 100.0])), unique_by=lambda pair: pair[0]))
def test_a_bias_is_added_to_its_token(row: list[float], bias: list[tuple[int, float]]) -> None:
    more = dict(bias)
    assert after(row, steps.add_bias, bias) == [value + more.get(token, 0.0) for token, value in enumerate(row)]


@given(rows, texts, texts, st.sampled_from([0.001, 0.5, 1.0, 1.3, 1000.0]))
def test_repetition_makes_tokens_of_prompt_and_output_less_probable_whatever_their_sign(
    row: list[float], prompt: tuple[int, ...], output: tuple[int, ...], penalty: float
) -> None:
    def expected(token: int, value: float) -> float:
        if token not in prompt + output:
            return value
        return value / penalty if value > 0 else value * penalty

    found = after(row, steps.penalise_repetition, penalty, History(prompt, output))
    assert found == [expected(token, value) for token, value in enumerate(row)]


@given(rows, texts, st.sampled_from([-2.0, 0.3, 2.0]))
def test_frequency_counts_each_time_and_presence_once_in_the_output(
    row: list[float], output: tuple[int, ...], penalty: float
) -> None:
    counts = Counter(output)
    every = [value - penalty * counts[token] if counts[token] else value for token, value in enumerate(row)]
    once = [value - penalty if counts[token] else value for token, value in enumerate(row)]
    assert after(row, steps.penalise_frequency, penalty, output) == every
    assert after(row, steps.penalise_presence, penalty, output) == once


def seven_wins(row: Floats, history: History) -> None:
    row[7] = 100.0 + len(history.output)


def test_a_processor_that_nobody_handed_in_is_an_error_of_the_runner() -> None:
    with pytest.raises(RunnerError, match="found 'absent', handed in: present"):
        steps.run_processors(np.zeros(3), ("absent",), {"present": seven_wins}, History((), ()))


def test_the_steps_come_in_their_order() -> None:
    params = SamplingParams(
        allowed_token_ids=(1, 2, 7), bad_words=((2,),), processors=("seven",), logit_bias=((7, -4.0), (2, 100.0)),
        repetition_penalty=2.0, frequency_penalty=0.5, presence_penalty=0.25,
    )  # fmt: skip
    row = np.arange(VOCABULARY, dtype=np.float64)
    steps.adjust(row, params, History((1,), (7, 7)), {"seven": seven_wins})
    expected = [-math.inf] * VOCABULARY
    expected[1] = 1 / 2
    expected[7] = (102.0 - 4.0) / 2 - 2 * 0.5 - 0.25
    assert row.tolist() == expected


# Log-probabilities


@settings(deadline=None)
@given(rows.filter(lambda row: max(row) > -math.inf), tokens, st.sampled_from([0, 1, 3, VOCABULARY, 10**9]))
def test_told_are_the_token_and_the_most_probable_ones_with_their_logarithms(row: list[float], token: int, count: int) -> None:
    found = told(np.array(row), token, count)
    order = sorted(range(VOCABULARY), key=lambda each: (-row[each], each))[:count]
    assert found.tokens == (token, *order)
    top = max(row)
    whole = math.log(math.fsum(math.exp(value - top) for value in row))
    assert found.values == pytest.approx([row[each] - top - whole for each in found.tokens], rel=1e-13, abs=1e-13)


def test_of_a_row_without_a_chance_nothing_has_a_probability() -> None:
    assert told(np.full(4, -np.inf), 0, 2) == ((0, 0, 1), (-math.inf,) * 3)


# The whole pipeline


def some_rows(count: int, seed: int, vocab_size: int) -> Draws:
    """Plain rows and rows that ask for anything, cold and warm, in any order."""
    rng = np.random.default_rng(seed)
    params, histories = [], []

    def text(most: int) -> tuple[int, ...]:
        return tuple(rng.integers(0, min(vocab_size, 9), rng.integers(1, most)).tolist())

    for _ in range(count):
        prompt, output = text(9), text(7)
        one = SamplingParams(
            max_tokens=20,
            min_tokens=int(rng.choice([0, 15])),
            stop_token_ids=text(3),
            temperature=float(rng.choice([0.0, 1e-6, 0.7, 2.0])),
            seed=int(rng.integers(2**63)),
            top_k=int(rng.choice([0, 0, 2, 10**6])),
            top_p=float(rng.choice([1.0, 0.8])),
            min_p=float(rng.choice([0.0, 0.1])),
        )
        if rng.random() < 0.7:
            word = (*output[len(output) - int(rng.integers(0, 3)) :], int(rng.integers(0, 9) % vocab_size))
            one = replace(
                one,
                allowed_token_ids=tuple(sorted(set(text(30)))) if rng.random() < 0.3 else (),
                bad_words=(word,) if rng.random() < 0.5 else (),
                logit_bias=((int(rng.integers(vocab_size)), 3.0),) if rng.random() < 0.5 else (),
                processors=("last",) if rng.random() < 0.3 else (),
                repetition_penalty=float(rng.choice([1.0, 1.3, 0.7])),
                frequency_penalty=float(rng.choice([0.0, 0.5, -0.5])),
                presence_penalty=float(rng.choice([0.0, 1.0, -2.0])),
                logprobs=[None, 0, 3, 10**6][int(rng.integers(4))],
                logprobs_mode=LogprobsMode.RAW if rng.random() < 0.5 else LogprobsMode.PROCESSED,
            )
        params.append(one)
        histories.append(History(prompt, output))
    return Draws(
        params,
        [row % 3 for row in range(count)],
        [len(prompt) + len(output) for prompt, output in histories],
        [len(prompt) for prompt, _ in histories],
        [history if one.needs_history else None for one, history in zip(params, histories, strict=True)],
    )


def last_is_dropped(row: Floats, history: History) -> None:
    row[history.output[-1]] = -np.inf


PROCESSORS = {"last": last_is_dropped}


def some_logits(count: int, vocab_size: int, seed: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return (3 * torch.randn(count, vocab_size, generator=torch.Generator().manual_seed(seed))).to(dtype)


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 2**31), st.sampled_from([torch.float32, torch.bfloat16]), st.sampled_from([9, 100, 5000]))
def test_torch_and_numpy_choose_and_tell_the_same_to_the_last_bit(seed: int, dtype: torch.dtype, vocab_size: int) -> None:
    draws = some_rows(14, seed, vocab_size)
    logits = some_logits(14, vocab_size, seed, dtype)
    before = logits.clone()
    expected = by_numpy(logits.double().numpy().copy(), draws, PhiloxNoise(), PROCESSORS)
    found = by_torch(logits, draws, PhiloxNoise(), PROCESSORS)
    assert found.tokens == expected.tokens
    assert list(found.logprobs) == list(expected.logprobs)
    assert torch.equal(logits, before)


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 2**31), st.sampled_from([9, 100, 5000]))
def test_the_processed_distribution_is_the_one_that_is_told_and_drawn_from(seed: int, vocab_size: int) -> None:
    draws = some_rows(14, seed, vocab_size)
    logits = some_logits(14, vocab_size, seed)
    asking = [replace(one, logprobs=vocab_size, logprobs_mode=LogprobsMode.PROCESSED) for one in draws.params]
    states = [
        RowState(one, history or History((0,) * length, (0,) * (place - length)))
        for one, history, place, length in zip(asking, draws.histories, draws.positions, draws.prompt_lens, strict=True)
    ]
    draws = draws._replace(params=asking, histories=[state.history for state in states])
    found = processed(logits, states, PROCESSORS)
    drawn = by_torch(logits, draws, PhiloxNoise(), PROCESSORS)
    assert found.sum(dim=1).tolist() == pytest.approx([1.0] * 14)
    for row, (one, token, logprobs) in enumerate(zip(asking, drawn.tokens, drawn.logprobs, strict=True)):
        assert found[row, token] > 0
        assert logprobs is not None
        if one.temperature == 0 or logprobs.values[0] == -math.inf:
            assert found[row, token] == 1
            continue
        expected = torch.zeros(vocab_size, dtype=torch.float64)
        expected[list(logprobs.tokens)] = torch.tensor(logprobs.values, dtype=torch.float64).exp()
        assert torch.allclose(found[row], expected, atol=1e-12)


def test_rows_that_ask_for_nothing_get_nothing_beside_one_that_asks() -> None:
    plain, asking = SamplingParams(), SamplingParams(logprobs=1)
    draws = Draws([plain, asking, plain], [0] * 3, [2] * 3, [2] * 3, [None, History((1, 2), ()), None])
    found = by_torch(torch.randn(3, 8, generator=torch.Generator().manual_seed(0)), draws, PhiloxNoise())
    assert [one is None for one in found.logprobs] == [True, False, True]
    assert by_torch(torch.zeros(1, 8), Draws([plain], [0], [2], [2]), PhiloxNoise()) == Sampled([0], ())


@pytest.mark.parametrize("mode", LogprobsMode)
def test_raw_log_probabilities_know_nothing_of_the_steps_and_processed_ones_all(mode: LogprobsMode) -> None:
    params = SamplingParams(
        temperature=0.5, top_k=2, logit_bias=((0, 100.0),), allowed_token_ids=(0, 1, 2), logprobs=4, logprobs_mode=mode
    )
    logits = torch.tensor([[0.0, 1.0, 2.0, 3.0]])
    draws = Draws([params], [0], [1], [1], [History((0,), ())])
    (found,) = by_torch(logits, draws, PhiloxNoise()).logprobs
    assert found is not None
    if mode is LogprobsMode.RAW:
        assert found.tokens == (0, 3, 2, 1, 0)
        assert found.values == pytest.approx(logits.double().log_softmax(1)[0, [0, 3, 2, 1, 0]].tolist(), abs=1e-15)
    else:
        assert found.tokens == (0, 0, 2, 1, 3)
        assert found.values == (0.0, 0.0, 2 * -98.0, -math.inf, -math.inf)


@pytest.mark.parametrize("temperature", [0.0, 1e-300, 1.0, 1e30])
def test_a_single_allowed_token_is_the_one_that_comes(temperature: float) -> None:
    params = SamplingParams(temperature=temperature, allowed_token_ids=(5,), min_p=1.0, top_p=1e-9, top_k=10**9)
    draws = Draws([params], [0], [1], [1], [History((0,), ())])
    logits = torch.full((1, 8), 3e38)
    logits[0, 5] = -3e38
    assert by_torch(logits, draws, PhiloxNoise()).tokens == [5]
    assert by_numpy(logits.double().numpy(), draws, PhiloxNoise()).tokens == [5]
    assert processed(logits, [RowState(params, History((0,), ()))])[0].tolist() == [0, 0, 0, 0, 0, 1, 0, 0]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_with_no_token_left_the_choice_is_token_zero(temperature: float) -> None:
    params = SamplingParams(temperature=temperature, allowed_token_ids=(5,), bad_words=((5,),), logprobs=1)
    draws = Draws([replace(params, logprobs_mode=LogprobsMode.PROCESSED)], [0], [1], [1], [History((0,), ())])
    found = by_torch(torch.zeros(1, 8), draws, PhiloxNoise())
    assert found == by_numpy(np.zeros((1, 8)), draws, PhiloxNoise())
    assert found.tokens == [0]
    assert found.logprobs[0] == ((0, 0), (-math.inf, -math.inf))
    assert processed(torch.zeros(1, 8), [RowState(params, History((0,), ()))])[0, 0] == 1


def test_logits_of_bfloat16_near_its_largest_number_stay_numbers() -> None:
    logits = torch.tensor([[3.3e38, -3.3e38, 3.2e38, 0.0]]).bfloat16()
    params = SamplingParams(temperature=1e-4, repetition_penalty=0.001, logprobs=4, logprobs_mode=LogprobsMode.PROCESSED)
    (found,) = by_torch(logits, Draws([params], [0], [2], [1], [History((1,), (0,))]), PhiloxNoise()).logprobs
    assert found is not None
    assert found.tokens == (0, 0, 2, 3, 1)
    assert found.values[:2] == (0.0, 0.0)
    assert max(found.values[2:]) < -1e40
