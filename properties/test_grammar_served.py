"""What an engine serves to rows with a grammar: the same tokens whatever the batch, chunks, preemptions, cache, forks and plans
in flight (SE-2), each output within its grammar (RS-2), by both runners; and what it says to those that it can not serve."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import lru_cache

import numpy as np
import pytest
import torch

from engine_under_test import ConfigError, Engine, EngineConfig, FingerprintRunner, Request
from engine_under_test.drafting import Drafting
from engine_under_test.execution.runner import Runner
from engine_under_test.execution.schedule import Chance
from engine_under_test.execution.simulated_device import SimulatedDevice
from engine_under_test.execution.transformer import TransformerRunner
from engine_under_test.model.weights import LlamaConfig, tiny_random
from engine_under_test.sampling.draft_model import DraftModel
from engine_under_test.sampling.grammar import CompiledGrammars
from engine_under_test.sampling.processed import RowState, processed
from engine_under_test.sampling.proposers import Scripted
from engine_under_test.sampling.speculation import Proposer
from engine_under_test.seams import Device
from engine_under_test.types import FinishReason, GrammarKind, GrammarSpec, History, RefusalReason, SamplingParams
from properties.grammar_cases import CASES, STOPS, TEXTS, VOCAB_SIZE
from properties.languages import wrong_output

CONFIG = EngineConfig(num_blocks=90, block_size=4, max_tokens_per_step=64, max_num_seqs=16, vocab_size=VOCAB_SIZE)
PLAIN = replace(CONFIG, batching=False, prefix_cache=False)
MAX_TOKENS = 14
WEIGHTS = tiny_random(LlamaConfig(VOCAB_SIZE, 24, 2, 2, 1, 12, 32), 1)


@pytest.fixture(scope="module")
def grammars() -> Iterator[CompiledGrammars]:
    made = CompiledGrammars(TEXTS)
    yield made
    made.close()


def requests() -> list[Request]:
    """Of every kind of grammar; two without one beside them; some with further steps of the sampler."""
    text = np.random.default_rng(0).integers(0, VOCAB_SIZE, 60).tolist()
    plain = SamplingParams(max_tokens=MAX_TOKENS, stop_token_ids=STOPS, temperature=1.0)
    more = (
        {"temperature": 0.0},
        {"top_p": 0.6, "n": 2},
        {"top_k": 2, "frequency_penalty": 1.0},
        {"n": 3, "logprobs": 2},
    )
    asked = [
        replace(plain, grammar=case.spec, seed=place, **more[place % len(more)]) for place, case in enumerate(CASES.values())
    ]
    asked[3:3] = [replace(plain, seed=40), replace(plain, seed=41, presence_penalty=1.0)]
    return [Request(f"r{place}", tuple(text[: 3 + 5 * place % 17]), sampling) for place, sampling in enumerate(asked)]


Said = dict[tuple[str, int], tuple[tuple[int, ...], FinishReason | None]]


def fingerprints(config: EngineConfig, grammars: CompiledGrammars, device: Device | None) -> Runner:
    return FingerprintRunner(config.num_blocks, config.block_size, VOCAB_SIZE, device=device, grammars=grammars)


def transformer(config: EngineConfig, grammars: CompiledGrammars, device: Device | None) -> Runner:
    return TransformerRunner(
        WEIGHTS, config.num_blocks, config.block_size, is_batch_invariant=True, device=device, grammars=grammars
    )


MakeRunner = Callable[[EngineConfig, CompiledGrammars, Device | None], Runner]


def serve(
    config: EngineConfig,
    grammars: CompiledGrammars,
    make: MakeRunner = fingerprints,
    device: Device | None = None,
    gap: int = 0,
    restarts: int = 0,
) -> tuple[Said, Engine]:
    engine = Engine(config, make(config, grammars, device), grammars=grammars)
    said: Said = {}

    def step() -> None:
        if isinstance(device, SimulatedDevice):
            device.turn()
        engine.step()
        for output in engine.take_outputs():
            key = output.request_id, output.choice
            assert output.finish_reason in (None, FinishReason.STOP, FinishReason.LENGTH), output.message
            said[key] = said.get(key, ((), None))[0] + output.token_ids, output.finish_reason

    for request in requests():
        answer = engine.submit(request)
        assert answer.is_accepted, answer.message
        for _ in range(gap):
            step()
    steps = 0
    while engine.has_work:
        step()
        steps += 1
        if steps % 5 == 0 and steps <= 5 * restarts:
            engine.restart()
    return said, engine


@lru_cache
def expected_of(grammars: CompiledGrammars, make: MakeRunner) -> Said:
    """Each request alone, with nothing taken from a cache."""
    return serve(PLAIN, grammars, make)[0]


def speak_with_drafts(config: EngineConfig, grammars: CompiledGrammars, proposer: Proposer) -> tuple[Said, Drafting]:
    drafting = Drafting(proposer)
    engine = Engine(config, transformer(config, grammars, None), grammars=grammars, drafting=drafting)
    said: Said = {}
    for request in requests():
        assert engine.submit(request).is_accepted
    while engine.has_work:
        engine.step()
        for output in engine.take_outputs():
            key = output.request_id, output.choice
            assert output.finish_reason in (None, FinishReason.STOP, FinishReason.LENGTH), output.message
            said[key] = said.get(key, ((), None))[0] + output.token_ids, output.finish_reason
    return said, drafting


def judge(said: Said) -> int:
    """How many outputs were complete."""
    completed = 0
    languages = {case.spec: case.language for case in CASES.values()}
    for request in requests():
        for choice in range(request.sampling.n):
            tokens, reason = said[request.request_id, choice]
            if request.sampling.grammar is None:
                continue
            is_complete = reason is FinishReason.STOP
            language = languages[request.sampling.grammar]
            assert wrong_output(language, TEXTS, tokens, STOPS, is_complete_now=is_complete) is None
            assert is_complete or len(tokens) == MAX_TOKENS
            completed += is_complete
    return completed


WAYS = {
    "in a batch": (CONFIG, 0, 0),
    "in chunks": (replace(CONFIG, max_tokens_per_step=3, max_num_seqs=3), 0, 0),
    "preempted": (replace(CONFIG, num_blocks=14), 0, 0),
    "begun again": (CONFIG, 0, 3),
    "at depth 1": (replace(CONFIG, max_plans_in_flight=2), 1, 0),
    "at depth 2, preempted": (replace(CONFIG, max_plans_in_flight=3, num_blocks=15, max_tokens_per_step=16), 1, 0),
}


@pytest.mark.parametrize(("config", "gap", "restarts"), WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("make", [fingerprints, transformer])
def test_outputs_are_the_same_and_within_their_grammars_however_they_are_served(
    grammars: CompiledGrammars, make: MakeRunner, config: EngineConfig, gap: int, restarts: int
) -> None:
    expected = expected_of(grammars, make)
    found, engine = serve(config, grammars, make, gap=gap, restarts=restarts)
    assert found == expected
    assert judge(found) > 8
    assert (engine.counters.preempted > 0) == (config.num_blocks < 20)


@pytest.mark.parametrize("heeds", [True, False], ids=["heeds grammars", "heeds none"])
def test_outputs_are_within_their_grammars_with_drafts_that_are_drawn_from_a_model(
    grammars: CompiledGrammars, heeds: bool
) -> None:
    drafts = TransformerRunner(tiny_random(WEIGHTS.config, 2), 200, 4)
    proposer = DraftModel(drafts, 200, 4, 3, grammars=grammars if heeds else None)
    said, drafting = speak_with_drafts(replace(CONFIG, max_plans_in_flight=2, max_num_seqs=30), grammars, proposer)
    assert judge(said) > 8
    assert drafting.num_proposed > 30
    assert drafting.num_accepted > (10 if heeds else 3)


def test_drafts_that_a_grammar_forbids_are_not_verified(grammars: CompiledGrammars) -> None:
    """Two tokens that may follow, and then one that may not."""
    engine = Engine(
        CONFIG,
        fingerprints(CONFIG, grammars, None),
        grammars=grammars,
        drafting=Drafting(Scripted(lambda _tokens, width: (TEXTS.index(b"e"), TEXTS.index(b"s"), 0)[:width], (3,), VOCAB_SIZE)),
    )
    sampling = replace(ASKING, grammar=GrammarSpec(GrammarKind.REGEX, ("y(es){3}",)), max_tokens=9)
    assert engine.submit(Request("a", (1, 2, 3), sampling)).is_accepted
    widths = []
    while engine.has_work:
        step = engine.reserve()
        assert step is not None
        widths.append(step.plan.num_drafts)
        engine.rollback(step)
        engine.step()
    assert set(widths[2:]) >= {(2,)}
    assert not any(count > 2 for counts in widths for count in counts)


@pytest.mark.parametrize("seed", range(4))
def test_the_same_holds_with_plans_that_run_late(grammars: CompiledGrammars, seed: int) -> None:
    expected = expected_of(grammars, fingerprints)
    config = replace(CONFIG, max_plans_in_flight=3, num_blocks=16, max_tokens_per_step=16)
    assert serve(config, grammars, device=SimulatedDevice(Chance(seed)), gap=seed % 3)[0] == expected


def test_the_law_that_drafts_are_verified_by_gives_probability_to_what_is_allowed_only(grammars: CompiledGrammars) -> None:
    spec, language = CASES["choices"].spec, CASES["choices"].language
    sampling = SamplingParams(grammar=spec, stop_token_ids=STOPS, temperature=1.0, top_p=0.9)
    outputs = ((), (TEXTS.index(b"no"),), (TEXTS.index(b"y"), TEXTS.index(b"es")))
    logits = torch.randn(3, VOCAB_SIZE, generator=torch.Generator().manual_seed(1))
    law = processed(logits, [RowState(sampling, History((1,), output)) for output in outputs], grammars=grammars)
    for row, output in zip(law, outputs, strict=True):
        assert row.sum().item() == pytest.approx(1)
        for token in torch.nonzero(row)[:, 0].tolist():
            is_over = token in STOPS
            assert wrong_output(language, TEXTS, (*output, token), STOPS, is_complete_now=is_over) is None


ASKING = SamplingParams(stop_token_ids=STOPS, grammar=CASES["choices"].spec)
REFUSED = {
    "no stop token": (replace(ASKING, stop_token_ids=()), RefusalReason.OUT_OF_RANGE, "no stop_token_ids"),
    "a least number of tokens": (replace(ASKING, min_tokens=2), RefusalReason.OUT_OF_RANGE, "min_tokens must be 0"),
    "a grammar that can not be compiled": (
        replace(ASKING, grammar=GrammarSpec(GrammarKind.REGEX, ("(a",))),
        RefusalReason.GRAMMAR,
        "unclosed group",
    ),
    "no grammar": (replace(ASKING, grammar="a|b"), RefusalReason.GRAMMAR, "must be a `GrammarSpec`"),  # type: ignore[arg-type]  # the type that is refused
}


@pytest.mark.parametrize(("sampling", "reason", "words"), REFUSED.values(), ids=REFUSED)
def test_what_can_not_be_served_is_refused_at_the_door_with_a_reason_and_a_sentence(
    grammars: CompiledGrammars, sampling: SamplingParams, reason: RefusalReason, words: str
) -> None:
    engine = Engine(CONFIG, fingerprints(CONFIG, grammars, None), grammars=grammars)
    answer = engine.submit(Request("a", (1,), sampling))
    assert answer.refusal is reason
    assert words in answer.message
    assert not engine.has_work


def test_an_engine_without_what_compiles_grammars_refuses_them_and_one_of_another_vocabulary_is_not_built(
    grammars: CompiledGrammars,
) -> None:
    engine = Engine(CONFIG, fingerprints(CONFIG, grammars, None))
    assert engine.submit(Request("a", (1,), ASKING)).refusal is RefusalReason.GRAMMAR
    with pytest.raises(ConfigError, match="vocabulary"):
        Engine(replace(CONFIG, vocab_size=VOCAB_SIZE + 1), fingerprints(CONFIG, grammars, None), grammars=grammars)


def test_where_other_steps_leave_no_token_that_the_grammar_allows_the_request_alone_ends_with_an_error(
    grammars: CompiledGrammars,
) -> None:
    engine = Engine(CONFIG, fingerprints(CONFIG, grammars, None), grammars=grammars)
    words = tuple((token,) for token, text in enumerate(TEXTS) if text.startswith(b"s"))
    stuck = replace(ASKING, grammar=GrammarSpec(GrammarKind.REGEX, ("ys+",)), bad_words=words)
    good = replace(ASKING, temperature=1.0)
    for name, sampling in (("good", good), ("stuck", stuck), ("fine", good)):
        assert engine.submit(Request(name, (1, 2), sampling)).is_accepted
    while engine.has_work:
        engine.step()
    ends = {output.request_id: output for output in engine.take_outputs() if output.finish_reason is not None}
    assert {name: output.finish_reason for name, output in ends.items()} == {
        "good": FinishReason.STOP,
        "stuck": FinishReason.ERROR,
        "fine": FinishReason.STOP,
    }
    assert "found none behind 1 tokens" in ends["stuck"].message


def test_a_runner_without_what_compiles_grammars_ends_the_request_that_has_one_and_no_other(grammars: CompiledGrammars) -> None:
    engine = Engine(CONFIG, FingerprintRunner(CONFIG.num_blocks, CONFIG.block_size, VOCAB_SIZE), grammars=grammars)
    for name, sampling in (("plain", replace(ASKING, grammar=None, max_tokens=3)), ("asking", ASKING)):
        assert engine.submit(Request(name, (1, 2), sampling)).is_accepted
    while engine.has_work:
        engine.step()
    ends = {output.request_id: output for output in engine.take_outputs() if output.finish_reason is not None}
    assert ends["plain"].finish_reason in (FinishReason.STOP, FinishReason.LENGTH)
    assert ends["asking"].finish_reason is FinishReason.ERROR
    assert "found nothing; hand it in" in ends["asking"].message
