"""What an engine serves with every option of the sampler: the same tokens and log-probabilities whatever the batch, chunks,
preemptions, cache, forks and plans in flight (SE-2), the right ones (SE-3), and nothing for who does not ask."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
import torch

from engine_under_test import Engine, EngineConfig, FingerprintRunner, ProtocolError, Request
from engine_under_test.execution.schedule import Chance
from engine_under_test.execution.simulated_device import SimulatedDevice
from engine_under_test.execution.transformer import TransformerRunner
from engine_under_test.model.weights import LlamaConfig, tiny_random
from engine_under_test.sampling.logprobs import log_softmax
from engine_under_test.seams import Device
from engine_under_test.types import FinishReason, History, Logprobs, LogprobsMode, Output, SamplingParams, StepResult

VOCAB = 12
CONFIG = EngineConfig(
    num_blocks=80, block_size=4, max_tokens_per_step=64, max_num_seqs=16, vocab_size=VOCAB, logits_processors=("odd",)
)


def even_after_odd(row: npt.NDArray[np.float64], history: History) -> None:
    """A processor: behind an odd token no odd one."""
    last = (history.prompt + history.output)[-1]
    if last % 2:
        row[1::2] = -np.inf


PROCESSORS = {"odd": even_after_odd}
SAMPLING = {
    "bad words": SamplingParams(max_tokens=9, bad_words=((3,), (1, 2), (7, 7, 7), (4, 5)), temperature=1.0, seed=3),
    "allowed tokens": SamplingParams(max_tokens=6, allowed_token_ids=(2, 5, 6), temperature=2.0, seed=4, n=2),
    "bias": SamplingParams(max_tokens=5, logit_bias=((1, 3.0), (9, -100.0)), temperature=0.7, seed=5),
    "penalties, greedy": SamplingParams(max_tokens=9, repetition_penalty=1.9, frequency_penalty=1.5, presence_penalty=2.0),
    "penalties": SamplingParams(max_tokens=9, frequency_penalty=2.0, repetition_penalty=1.4, temperature=0.8, seed=6, n=3),
    "rewards": SamplingParams(max_tokens=9, frequency_penalty=-2.0, presence_penalty=-0.5, temperature=0.8, seed=7),
    "a processor": SamplingParams(max_tokens=8, processors=("odd",), temperature=1.0, seed=8),
    "raw": SamplingParams(max_tokens=6, logprobs=3, prompt_logprobs=2, temperature=1.0, seed=9, n=2, top_k=4),
    "processed": SamplingParams(
        max_tokens=6,
        logprobs=VOCAB,
        logprobs_mode=LogprobsMode.PROCESSED,
        prompt_logprobs=0,
        top_p=0.7,
        temperature=1.5,
        presence_penalty=1.0,
        min_tokens=3,
        stop_token_ids=(1, 2, 3),
    ),
    "plain": SamplingParams(max_tokens=6, temperature=1.0, seed=10),
}
LENGTHS = (9, 1, 4, 13, 17, 6, 2, 21, 11, 5)


def requests() -> list[Request]:
    text = np.random.default_rng(0).integers(0, VOCAB, 40).tolist()
    return [
        Request(name, tuple(text[:length] if place % 2 else text[length : 2 * length]), sampling)
        for place, (length, (name, sampling)) in enumerate(zip(LENGTHS, SAMPLING.items(), strict=True))
    ]


Told = dict[tuple[str, int], tuple[tuple[int, ...], tuple[Logprobs, ...], tuple[Logprobs, ...]]]


def serve(config: EngineConfig, asked: list[Request], device: Device | None = None, gap: int = 0) -> tuple[Told, Engine]:
    runner = FingerprintRunner(config.num_blocks, config.block_size, VOCAB, device=device, processors=PROCESSORS)
    engine = Engine(config, runner)
    outputs: list[Output] = []

    def step() -> None:
        if isinstance(device, SimulatedDevice):
            device.turn()
        engine.step()
        outputs.extend(engine.take_outputs())

    for request in asked:
        answer = engine.submit(request)
        assert answer.is_accepted, answer.message
        for _ in range(gap):
            step()
    while engine.has_work:
        step()
    told: Told = {}
    for output in outputs:
        tokens, logprobs, of_prompt = told.get((output.request_id, output.choice), ((), (), ()))
        assert output.finish_reason in (None, FinishReason.STOP, FinishReason.LENGTH), output.message
        key = output.request_id, output.choice
        told[key] = tokens + output.token_ids, logprobs + output.logprobs, of_prompt + output.prompt_logprobs
    return told, engine


PLAIN = replace(CONFIG, batching=False, prefix_cache=False)
WAYS = {
    "in a batch": (CONFIG, 0),
    "in chunks": (replace(CONFIG, max_tokens_per_step=3, max_num_seqs=3), 0),
    "preempted": (replace(CONFIG, num_blocks=13), 0),
    "joined one by one": (CONFIG, 1),
    "at depth 1": (replace(CONFIG, max_plans_in_flight=2), 1),
    "at depth 2, preempted": (replace(CONFIG, max_plans_in_flight=3, num_blocks=14, max_tokens_per_step=16), 1),
}


@pytest.mark.parametrize(("config", "gap"), WAYS.values(), ids=WAYS)
def test_every_option_gives_the_same_tokens_and_log_probabilities_however_it_is_served(config: EngineConfig, gap: int) -> None:
    expected, _ = serve(PLAIN, requests())
    found, engine = serve(config, requests(), gap=gap)
    assert found == expected
    assert (engine.counters.preempted > 0) == (config.num_blocks < 20)


@pytest.mark.parametrize("seed", range(6))
def test_the_same_holds_with_plans_that_run_late(seed: int) -> None:
    expected, _ = serve(PLAIN, requests())
    config = replace(CONFIG, max_plans_in_flight=3, num_blocks=16, max_tokens_per_step=16)
    assert serve(config, requests(), SimulatedDevice(Chance(seed)), gap=seed % 3)[0] == expected


def test_an_output_never_holds_a_bad_word_nor_a_token_that_is_not_allowed() -> None:
    told, _ = serve(CONFIG, requests())
    for (name, _choice), (tokens, _, _) in told.items():
        sampling = SAMPLING[name]
        words = {tokens[start:end] for start in range(len(tokens)) for end in range(start + 1, len(tokens) + 1)}
        assert not words & set(sampling.bad_words)
        assert not sampling.allowed_token_ids or set(tokens) <= set(sampling.allowed_token_ids)


def test_log_probabilities_come_for_each_token_of_who_asks_and_for_nobody_else() -> None:
    told, _ = serve(CONFIG, requests())
    for (name, choice), (tokens, logprobs, of_prompt) in told.items():
        sampling, prompt = SAMPLING[name], next(each.prompt for each in requests() if each.request_id == name)
        assert [each.tokens[0] for each in logprobs] == ([] if sampling.logprobs is None else list(tokens))
        asks = sampling.prompt_logprobs is not None and choice == 0
        assert [each.tokens[0] for each in of_prompt] == (list(prompt[1:]) if asks else [])


def test_a_cached_prompt_is_told_of_as_a_cold_one() -> None:
    (asking,) = (each for each in requests() if each.request_id == "raw")
    warming = replace(asking, request_id="first", sampling=SamplingParams(max_tokens=1))
    assert serve(CONFIG, [warming, asking], gap=9)[0]["raw", 0] == serve(PLAIN, [asking])[0]["raw", 0]


def with_some_for_all(result: StepResult) -> StepResult:
    one = Logprobs((0,), (0.0,))
    return replace(result, logprobs=tuple((one,) * len(tokens) for tokens in result.tokens))


def without_any(result: StepResult) -> StepResult:
    return replace(result, logprobs=())


@pytest.mark.parametrize("bend", [with_some_for_all, without_any])
def test_a_result_with_log_probabilities_for_the_wrong_rows_is_refused(bend: Callable[[StepResult], StepResult]) -> None:
    runner = FingerprintRunner(CONFIG.num_blocks, CONFIG.block_size, VOCAB)
    engine = Engine(CONFIG, runner)
    for name, logprobs in (("asks", 1), ("asks not", None)):
        engine.submit(Request(name, (1, 2), SamplingParams(logprobs=logprobs)))
    step = engine.reserve()
    assert step is not None
    engine.launch(step)
    launch = engine._in_flight.oldest.launch  # type: ignore[union-attr]  # it was just launched
    assert launch is not None
    with pytest.raises(ProtocolError, match="for no other"):
        engine.commit(bend(launch.result()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_transformer_tells_the_log_softmax_of_its_logits_of_prompt_and_output(dtype: torch.dtype) -> None:
    weights = tiny_random(LlamaConfig(VOCAB, 24, 2, 2, 1, 12, 32), 1, dtype)
    config = replace(CONFIG, max_tokens_per_step=5, max_num_seqs=5)
    engine = Engine(config, TransformerRunner(weights, config.num_blocks, config.block_size, is_batch_invariant=True))
    prompt = tuple(range(11))
    engine.submit(Request("a", prompt, SamplingParams(max_tokens=3, logprobs=VOCAB, prompt_logprobs=VOCAB)))
    rows: list[torch.Tensor] = []
    outputs: list[Output] = []
    while engine.has_work:
        step = engine.reserve()
        assert step is not None
        engine.launch(step)
        launch = engine._in_flight.oldest.launch  # type: ignore[union-attr]  # it was just launched
        assert launch is not None
        rows.extend(launch.logits)  # type: ignore[union-attr]  # this runner has them
        engine.commit(launch.result())
        outputs.extend(engine.take_outputs())
    told = [each for output in outputs for each in output.logprobs]
    of_prompt = outputs[0].prompt_logprobs
    assert len(rows) == len(told) == 3
    assert [each.tokens[0] for each in of_prompt] == list(prompt[1:])
    for row, logprobs in zip(rows, told, strict=True):
        assert list(logprobs.values) == log_softmax(row.double().numpy())[list(logprobs.tokens)].tolist()
    tokens = [token for output in outputs for token in output.token_ids]
    again = Engine(config, TransformerRunner(weights, config.num_blocks, config.block_size, is_batch_invariant=True))
    again.submit(Request("b", (*prompt, *tokens[:2]), SamplingParams(max_tokens=1, logprobs=VOCAB, prompt_logprobs=VOCAB)))
    while again.has_work:
        again.step()
    (whole,) = again.take_outputs()
    assert whole.prompt_logprobs == (*of_prompt, *told[:2])  # as prompt or as output: the same logits
    assert whole.logprobs == (told[2],)
