"""A request that can never run is refused at the door, with a reason and a sentence, and nothing of it is kept."""

import math
from dataclasses import replace

import pytest

from engine_under_test import Adapter, Engine, EngineConfig, FingerprintRunner, Media, RefusalReason, Request, SamplingParams

CONFIG = EngineConfig(
    num_blocks=4, block_size=4, max_tokens_per_step=8, max_num_seqs=2, vocab_size=32, adapters=(Adapter("fr", 1),)
)
GOOD = Request("a", (1, 2, 3), SamplingParams(max_tokens=4))


def _engine(config: EngineConfig = CONFIG) -> Engine:
    return Engine(config, FingerprintRunner(config.num_blocks, config.block_size, config.vocab_size))


def _sampling(**changed: object) -> Request:
    return replace(GOOD, sampling=replace(GOOD.sampling, **changed))  # type: ignore[arg-type]  # wrong types are the point


BAD = {
    "an empty prompt": (replace(GOOD, prompt=()), RefusalReason.EMPTY_PROMPT),
    "one slot more than the pool": (replace(GOOD, prompt=tuple(range(14))), RefusalReason.TOO_LONG),
    "a token beyond the vocabulary": (replace(GOOD, prompt=(1, 32)), RefusalReason.TOKEN_OUT_OF_VOCABULARY),
    "a negative token": (replace(GOOD, prompt=(-1,)), RefusalReason.TOKEN_OUT_OF_VOCABULARY),
    "a stop token beyond the vocabulary": (_sampling(stop_token_ids=(99,)), RefusalReason.TOKEN_OUT_OF_VOCABULARY),
    "no tokens wanted": (_sampling(max_tokens=0), RefusalReason.OUT_OF_RANGE),
    "min_tokens above max_tokens": (_sampling(min_tokens=5), RefusalReason.OUT_OF_RANGE),
    "a temperature that is not a number": (_sampling(temperature=math.nan), RefusalReason.OUT_OF_RANGE),
    "an infinite temperature": (_sampling(temperature=math.inf), RefusalReason.OUT_OF_RANGE),
    "a negative temperature": (_sampling(temperature=-0.5), RefusalReason.OUT_OF_RANGE),
    "a negative top_k": (_sampling(top_k=-1), RefusalReason.OUT_OF_RANGE),
    "a top_k that is no integer": (_sampling(top_k=5.0), RefusalReason.OUT_OF_RANGE),
    "a top_p of nothing": (_sampling(top_p=0.0), RefusalReason.OUT_OF_RANGE),
    "a top_p above one": (_sampling(top_p=1.01), RefusalReason.OUT_OF_RANGE),
    "a top_p that is not a number": (_sampling(top_p=math.nan), RefusalReason.OUT_OF_RANGE),
    "a negative min_p": (_sampling(min_p=-0.1), RefusalReason.OUT_OF_RANGE),
    "a min_p above one": (_sampling(min_p=1.01), RefusalReason.OUT_OF_RANGE),
    "a min_p that is not a number": (_sampling(min_p=math.nan), RefusalReason.OUT_OF_RANGE),
    "a min_p as text": (_sampling(min_p="0.1"), RefusalReason.OUT_OF_RANGE),
    "an allowed token beyond the vocabulary": (_sampling(allowed_token_ids=(3, 32)), RefusalReason.TOKEN_OUT_OF_VOCABULARY),
    "allowed tokens as a list": (_sampling(allowed_token_ids=[3]), RefusalReason.OUT_OF_RANGE),
    "an empty bad word": (_sampling(bad_words=((1,), ())), RefusalReason.OUT_OF_RANGE),
    "a bad word that is no sequence": (_sampling(bad_words=(1,)), RefusalReason.OUT_OF_RANGE),
    "a bad word beyond the vocabulary": (_sampling(bad_words=((1, 32),)), RefusalReason.TOKEN_OUT_OF_VOCABULARY),
    "a logits processor that nobody listed": (_sampling(processors=("mine",)), RefusalReason.OUT_OF_RANGE),
    "a bias of too much": (_sampling(logit_bias=((1, 100.5),)), RefusalReason.OUT_OF_RANGE),
    "a bias that is not a number": (_sampling(logit_bias=((1, math.nan),)), RefusalReason.OUT_OF_RANGE),
    "a token with two biases": (_sampling(logit_bias=((1, 1.0), (1, 2.0))), RefusalReason.OUT_OF_RANGE),
    "a biased token beyond the vocabulary": (_sampling(logit_bias=((32, 1.0),)), RefusalReason.TOKEN_OUT_OF_VOCABULARY),
    "a repetition penalty of nothing": (_sampling(repetition_penalty=0.0), RefusalReason.OUT_OF_RANGE),
    "a repetition penalty that is not a number": (_sampling(repetition_penalty=math.nan), RefusalReason.OUT_OF_RANGE),
    "a frequency penalty above 2": (_sampling(frequency_penalty=2.1), RefusalReason.OUT_OF_RANGE),
    "a presence penalty below -2": (_sampling(presence_penalty=-2.1), RefusalReason.OUT_OF_RANGE),
    "log-probabilities below none": (_sampling(logprobs=-1), RefusalReason.OUT_OF_RANGE),
    "log-probabilities as a switch": (_sampling(logprobs=True), RefusalReason.OUT_OF_RANGE),
    "log-probabilities of the prompt below none": (_sampling(prompt_logprobs=-1), RefusalReason.OUT_OF_RANGE),
    "log-probabilities of another kind": (_sampling(logprobs_mode="raw"), RefusalReason.OUT_OF_RANGE),
    "a negative seed": (_sampling(seed=-1), RefusalReason.OUT_OF_RANGE),
    "no choices": (_sampling(n=0), RefusalReason.OUT_OF_RANGE),
    "more choices than can run": (_sampling(n=3), RefusalReason.OUT_OF_RANGE),
    "max_tokens as a bool": (_sampling(max_tokens=True), RefusalReason.OUT_OF_RANGE),
    "an unknown adapter": (replace(GOOD, adapter=Adapter("de", 1)), RefusalReason.UNKNOWN_ADAPTER),
    "an unknown version of a known adapter": (replace(GOOD, adapter=Adapter("fr", 2)), RefusalReason.UNKNOWN_ADAPTER),
    "a priority beyond 32 bits": (replace(GOOD, priority=2**31), RefusalReason.OUT_OF_RANGE),
    "a deadline in the past": (replace(GOOD, deadline_s=-1.0), RefusalReason.DEADLINE_PASSED),
    "a deadline that is not a number": (replace(GOOD, deadline_s=math.nan), RefusalReason.OUT_OF_RANGE),
    "media beyond the prompt": (replace(GOOD, media=(Media("cat", 2, 2),)), RefusalReason.OUT_OF_RANGE),
    "media that overlap": (replace(GOOD, media=(Media("cat", 0, 2), Media("dog", 1, 1))), RefusalReason.OUT_OF_RANGE),
}


@pytest.mark.parametrize(("request_", "reason"), BAD.values(), ids=BAD.keys())
def test_it_is_refused_and_leaves_no_trace(request_: Request, reason: RefusalReason) -> None:
    engine = _engine()
    before = engine.snapshot()
    answer = engine.submit(request_)
    assert answer.refusal is reason
    assert "found" in answer.message
    assert engine.snapshot() == before
    assert not engine.has_work
    assert engine.submit(replace(GOOD, request_id=request_.request_id)).is_accepted


def test_a_live_identifier_is_refused_and_is_free_again_after_its_end() -> None:
    engine = _engine()
    first = engine.submit(GOOD)
    assert engine.submit(GOOD).refusal is RefusalReason.DUPLICATE_ID
    assert engine.abort("a")
    second = engine.submit(GOOD)
    assert second.is_accepted
    assert second.incarnation > first.incarnation


def test_without_chunking_what_no_step_can_hold_is_refused() -> None:
    engine = _engine(replace(CONFIG, chunking=False))
    assert engine.submit(replace(GOOD, prompt=tuple(range(5)))).is_accepted
    assert engine.submit(replace(GOOD, request_id="b", prompt=tuple(range(6)))).refusal is RefusalReason.TOO_LONG


def test_the_longest_request_that_fits_runs_to_its_end() -> None:
    engine = _engine()
    assert engine.submit(replace(GOOD, prompt=tuple(range(13)))).is_accepted
    for _ in range(20):
        engine.step()
    assert [token for output in engine.take_outputs() for token in output.token_ids].__len__() == 4
    assert not engine.has_work
