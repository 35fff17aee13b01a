"""An engine that speculates: the tokens of every request as without drafts, whatever is proposed, and nothing left over."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest

from engine_under_test import Engine, EngineConfig, FingerprintRunner, Request, SamplingParams
from engine_under_test.drafting import Drafting
from engine_under_test.errors import RunnerError
from engine_under_test.execution.runner import Launch, Runner
from engine_under_test.execution.transformer import TransformerRunner
from engine_under_test.model.weights import LlamaConfig, tiny_random
from engine_under_test.sampling.controller import Seconds, Trial, WidthController
from engine_under_test.sampling.proposers import PromptLookup, Scripted
from engine_under_test.sampling.speculation import Ask, Declaration, Proposal, Proposer, Repair
from engine_under_test.seams import Noise
from engine_under_test.types import FinishReason, Plan, Reservation

CONFIG = EngineConfig(num_blocks=24, block_size=4, max_tokens_per_step=24, max_num_seqs=4, vocab_size=16)
PROMPT = (1, 2, 3, 1, 2, 3, 1, 2)

Told = dict[tuple[str, int], tuple[list[int], FinishReason | None]]


def _requests(temperature: float = 0.0, **fields: Any) -> list[Request]:
    sampling = SamplingParams(max_tokens=12, temperature=temperature, **fields)
    return [
        Request("a", PROMPT, sampling),
        Request("b", PROMPT[:5], replace(sampling, seed=3)),
        Request("c", (7,), replace(sampling, seed=9, n=2)),
        Request("d", (5, 5, 5, 5, 5, 5), replace(sampling, seed=4)),
    ]


def _serve(
    config: EngineConfig, requests: Sequence[Request], drafting: Drafting | None = None, runner: Runner | None = None
) -> Told:
    if runner is None:
        runner = FingerprintRunner(config.num_blocks, config.block_size, config.vocab_size)
    engine = Engine(config, runner, drafting=drafting)
    for request in requests:
        assert engine.submit(request).is_accepted
    told: Told = {}
    for _ in range(1000):
        if not engine.has_work and not engine.plans_in_flight:
            break
        engine.step()
        for output in engine.take_outputs():
            tokens, reason = told.get((output.request_id, output.choice), ([], None))
            assert reason is None
            assert output.index == len(tokens)
            told[output.request_id, output.choice] = ([*tokens, *output.token_ids], output.finish_reason)
    engine.poll()
    assert sorted(engine.snapshot().free) == list(range(1, config.num_blocks + 1)), "every block came back"
    return told


def _knowing(requests: Sequence[Request], counts: Sequence[int]) -> Scripted:
    """Proposes what the requests are going to say, for as many tokens as `counts` tells, then something else."""
    return _that_knows(requests, _serve(CONFIG, requests), counts)


def _that_knows(requests: Sequence[Request], told: Told, counts: Sequence[int]) -> Scripted:
    prompts = {request.request_id: request.prompt for request in requests}
    texts = [(*prompts[name], *tokens) for (name, _), (tokens, _) in told.items()]

    def truth(tokens: Sequence[int], width: int) -> Sequence[int]:
        known = tuple(tokens)
        text = next((each for each in texts if each[: len(known)] == known), known)
        return (*text[len(known) :], *(0,) * width)[:width]

    return Scripted(truth, counts, CONFIG.vocab_size, 4)


@pytest.mark.parametrize("depth", [0, 1, 2])
@pytest.mark.parametrize("temperature", [0.0, 1.0], ids=["greedy", "warm"])
@pytest.mark.parametrize("counts", [(0,), (1, 3, 0, 2), (4,)], ids=["none stand", "some stand", "all stand"])
def test_tokens_are_those_without_drafts(depth: int, temperature: float, counts: tuple[int, ...]) -> None:
    config = replace(CONFIG, max_plans_in_flight=depth + 1)
    requests = _requests(temperature)
    drafting = Drafting(_knowing(requests, counts))
    assert _serve(config, requests, drafting) == _serve(CONFIG, requests)
    assert drafting.num_proposed > 0
    if max(counts):
        assert drafting.num_accepted > 0
    else:
        assert drafting.num_accepted == 0


@pytest.mark.parametrize(
    "fields",
    [
        {"stop_token_ids": (3, 9)},
        {"stop_token_ids": (3, 9, 1, 2), "min_tokens": 7},
        {"repetition_penalty": 1.7, "frequency_penalty": 0.5, "presence_penalty": 0.3},
        {"bad_words": ((1, 2), (3,))},
        {"logit_bias": ((4, 5.0),), "top_k": 3, "top_p": 0.9},
        {"logprobs": 2, "min_p": 0.05},
    ],
    ids=["stop", "min_tokens", "penalties", "bad words", "bias", "log-probabilities"],
)
@pytest.mark.parametrize("temperature", [0.0, 1.5], ids=["greedy", "warm"])
def test_options_are_in_force_behind_every_draft(fields: dict[str, object], temperature: float) -> None:
    requests = _requests(temperature, **fields)
    for proposer in (PromptLookup(4), _knowing(requests, (2, 4, 1))):
        assert _serve(CONFIG, requests, Drafting(proposer)) == _serve(CONFIG, requests)


@pytest.mark.parametrize("proposer", [PromptLookup(3)], ids=["prompt lookup"])
@pytest.mark.parametrize("num_blocks", [8, 9, 11])
@pytest.mark.parametrize("depth", [0, 1, 2])
def test_a_small_pool_preempts_and_changes_no_token(proposer: Proposer, num_blocks: int, depth: int) -> None:
    config = replace(CONFIG, num_blocks=num_blocks, max_tokens_per_step=8, max_plans_in_flight=depth + 1)
    requests = _requests(1.0)
    assert _serve(config, requests, Drafting(proposer)) == _serve(CONFIG, requests)


@pytest.mark.parametrize("depth", [0, 1, 2])
@pytest.mark.parametrize("temperature", [0.0, 1.0], ids=["greedy", "warm"])
def test_a_language_model_says_the_same_with_drafts(depth: int, temperature: float) -> None:
    weights = tiny_random(LlamaConfig(16, 32, 2, 2, 1, 16, 48), seed=5)
    config = replace(CONFIG, max_plans_in_flight=depth + 1)
    requests = _requests(temperature, repetition_penalty=1.3, logprobs=1)

    def serve(depth_config: EngineConfig, drafting: Drafting | None) -> Told:
        runner = TransformerRunner(weights, config.num_blocks, config.block_size, is_batch_invariant=True)
        return _serve(depth_config, requests, drafting, runner)

    plain = serve(CONFIG, None)
    drafting = Drafting(_that_knows(requests, plain, (1, 3, 0, 2)))
    assert serve(config, drafting) == plain
    assert drafting.num_accepted > 0


class _PlayedTime:
    """A clock that a proposer and a runner move on: so many seconds for each round of drafts and each token verified."""

    def __init__(self, round_s: float, token_s: float) -> None:
        self._time_s = 0.0
        self._round_s = round_s
        self._token_s = token_s

    def now(self) -> float:
        return self._time_s

    def pass_for_drafts(self, proposal: Proposal) -> Proposal:
        self._time_s += self._round_s * max(proposal.widths, default=0)
        return proposal

    def pass_for_step(self, plan: Plan) -> None:
        self._time_s += 10e-3 + self._token_s * sum(plan.num_tokens)


@dataclass
class _Timed:
    """A proposer that takes its time."""

    inner: Scripted
    clock: _PlayedTime

    @property
    def declaration(self) -> Declaration:
        return self.inner.declaration

    def propose(self, asks: Sequence[Ask], noise: Noise) -> Proposal:
        return self.clock.pass_for_drafts(self.inner.propose(asks, noise))

    def repair(self, repairs: Sequence[Repair]) -> None:
        self.inner.repair(repairs)


class _TimedRunner:
    """A runner whose steps take their time, and that keeps their widths."""

    def __init__(self, config: EngineConfig, clock: _PlayedTime) -> None:
        self._inner = FingerprintRunner(config.num_blocks, config.block_size, config.vocab_size)
        self._clock = clock
        self.widths: list[int] = []

    def launch(self, plan: Plan, reservation: Reservation) -> Launch:
        self._clock.pass_for_step(plan)
        self.widths.append(max(plan.num_drafts, default=0))
        return self._inner.launch(plan, reservation)


@pytest.mark.parametrize(("stands", "width"), [(4, 4), (0, 0)], ids=["all stand", "none stands"])
@pytest.mark.parametrize("depth", [0, 1], ids=["depth 0", "depth 1"])
def test_a_controller_finds_the_width_and_no_token_depends_on_it(stands: int, width: int, depth: int) -> None:
    config = replace(CONFIG, num_blocks=120, max_plans_in_flight=depth + 1)
    requests = [Request(f"r{number}", (number, *PROMPT), SamplingParams(max_tokens=90)) for number in range(8)]
    told = _serve(config, requests)
    clock = _PlayedTime(1e-3, 0.01e-3)
    scripted = _that_knows(requests, told, (stands,))
    controller = WidthController()
    runner = _TimedRunner(config, clock)
    drafting = Drafting(_Timed(scripted, clock), controller=controller, clock=clock)
    assert _serve(config, requests, drafting, runner) == told
    assert controller.width == width
    assert Counter(runner.widths[len(runner.widths) // 3 :]).most_common(1)[0][0] == width
    last = {repair.row: repair.confirmed for repair in scripted.repairs}
    assert len(last) == 8
    assert set(last.values()) == {0}, "whoever was asked was told of its end"


def test_a_controller_is_told_of_every_plan_that_lands_and_of_no_lost_one() -> None:
    told: list[tuple[int, list[Trial]]] = []

    class Hearing(WidthController):
        def observe(self, num_rows: int, trials: Iterable[Trial], seconds: Seconds) -> None:
            told.append((num_rows, list(trials)))
            super().observe(num_rows, told[-1][1], seconds)

    config = replace(CONFIG, max_plans_in_flight=2)
    requests = _requests()
    clock = _PlayedTime(1e-3, 0.01e-3)
    drafting = Drafting(_knowing(requests, (2,)), controller=Hearing(), clock=clock)
    runner = _TimedRunner(config, clock)
    engine = Engine(config, runner, drafting=drafting)
    for request in requests:
        engine.submit(request)
    for _ in range(3):
        engine.step()
    lost = engine.plans_in_flight
    engine.abandon(lost[0], "lost")
    while engine.has_work or engine.plans_in_flight:
        engine.step()
    assert len(told) == len(runner.widths) - len(lost)
    assert any(trials for _, trials in told)


class _Failing:
    """A proposer that fails every second time."""

    def __init__(self, proposer: Proposer) -> None:
        self._proposer = proposer
        self.num_asked = 0

    @property
    def declaration(self) -> Declaration:
        return self._proposer.declaration

    def propose(self, asks: Sequence[Ask], noise: Noise) -> Proposal:
        self.num_asked += 1
        if self.num_asked % 2:
            raise RunnerError("the draft model ran out of memory")
        return self._proposer.propose(asks, noise)

    def repair(self, repairs: Sequence[Repair]) -> None:
        self._proposer.repair(repairs)


@pytest.mark.parametrize("depth", [0, 1])
def test_where_a_proposer_fails_the_engine_goes_on_without_drafts(depth: int) -> None:
    config = replace(CONFIG, max_plans_in_flight=depth + 1)
    proposer = _Failing(PromptLookup())
    drafting = Drafting(proposer)
    assert _serve(config, _requests(), drafting) == _serve(config, _requests())
    assert drafting.num_failed == -(-proposer.num_asked // 2) > 1
    assert drafting.num_proposed > 0
