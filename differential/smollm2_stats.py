"""The suite `smollm2-statistics`: what an engine draws from a real model at the first positions is that model's softmax. (ST-2)

Many choices and seeds behind texts that are a token longer each, through batches, forks and the prefix cache, one token a
choice. The law at each of these positions is the softmax of the reference's float64 logits. A token stands in its law at a
place between 0 and 1 (the sum of what is likelier, and a random part of its own share), uniform whatever the position; these
places, in sixteen equal cells, are judged together (`likelihood_ratio.py`).
Of each text one batch goes through the model; the others take the logits of its rows, so that what a draw costs is drawing.
Where the model was not fetched the suite is unknown and says what to do. Never: a second try.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from differential.error_budget import Ledger, Probabilities
from differential.likelihood_ratio import likelihood_statistic
from differential.reference import reference_logits
from differential.sampling_stats import Question, softmax, unread, violation_of
from differential.setting import SMOLLM2, ModelSpec, weights_of
from differential.threads import one_thread
from differential.well_formed import Malformed, whole_numbers
from engine_under_test.config import EngineConfig
from engine_under_test.engine import Engine
from engine_under_test.execution.asked import PromptPart
from engine_under_test.execution.transformer import TransformerRunner
from engine_under_test.model.fetch import model_folder
from engine_under_test.model.tokenizer import load_tokenizer
from engine_under_test.types import Plan, Request, Reservation, SamplingParams
from properties.suite import CheckResult, Failure, Profile, SuiteContext
from properties.verdict import Verdict, merge

SUITE_ID = "smollm2-statistics"
TEXTS = ("Once upon a time, in a small village by the sea", "My favourite colour is the blue of a summer sky because it")
POSITIONS = 4  # behind the last tokens of a text
REQUESTS = {Profile.PR: 10, Profile.NIGHTLY: 32}  # at each position; profile pr takes the first text
CELLS = 16
TEMPERATURE = 0.9
CHOICES = 64  # of a request

Tokens = npt.NDArray[np.int64]


class RememberingRunner(TransformerRunner):
    """Computes the first step of each kind behind a text, and hands out its logits, row by row, to those that follow, whose
    forks and seeds are others. What a step that is remembered does not write is poison to one that is not."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.num_computed = 0  # rows that sampled
        self._known: dict[tuple[object, ...], torch.Tensor] = {}

    def _compute(self, plan: Plan, reservation: Reservation, parts: Sequence[PromptPart]) -> torch.Tensor:
        kind = (tuple(plan.samples), tuple(plan.num_tokens), *(request.prompt for request in plan.requests))
        if kind not in self._known:
            self._known[kind] = super()._compute(plan, reservation, parts)
            self.num_computed += sum(plan.samples)
        else:
            self.rows.follow(plan, reservation, self._last.find)
        return self._known[kind]


def places(law: Probabilities, tokens: Tokens, chance: np.random.Generator) -> Probabilities:
    """Where in its law each token stands, in falling order of probability: uniform if it was drawn from it."""
    order = np.argsort(-law, kind="stable")
    end = np.empty(len(law))
    end[order] = law[order].cumsum()
    found: Probabilities = np.clip(end[tokens] - chance.random(len(tokens)) * law[tokens], 0.0, 1 - 1e-12)
    return found


def drawn(engine: Engine, name: str, prompt: Sequence[int], requests: int, first_seed: int) -> Iterator[int]:
    """The first token of every choice of so many requests."""
    for number in range(requests):
        sampling = SamplingParams(max_tokens=1, temperature=TEMPERATURE, seed=(first_seed + number) % 2**64, n=CHOICES)
        answer = engine.submit(Request(f"{name} {number}", tuple(prompt), sampling))
        assert answer.is_accepted, answer.message
        while engine.has_work:
            engine.step()
        for output in engine.take_outputs():
            yield from output.token_ids


def places_drawn(
    text: str, requests: int, seed: int, chance: np.random.Generator, progress: Callable[[], None]
) -> tuple[Probabilities, RememberingRunner]:
    """Where the tokens drawn at the first positions behind a text stand in their laws."""
    folder = model_folder(SMOLLM2)
    assert folder is not None
    weights = weights_of(ModelSpec(SMOLLM2))
    config = EngineConfig(num_blocks=64, vocab_size=weights.config.vocab_size, max_num_seqs=CHOICES)
    runner = RememberingRunner(weights, config.num_blocks, config.block_size)
    engine = Engine(config, runner)
    tokens = load_tokenizer(folder).encode(text)
    shortest = len(tokens) - POSITIONS + 1
    logits = reference_logits(weights, tokens, begin=shortest - 1).numpy()
    found = []
    for number, of_position in enumerate(logits):
        prompt = tokens[: shortest + number]
        tokens_drawn = [*drawn(engine, f"{number}", prompt, requests, seed + (number << 16))]
        sampled = whole_numbers(tokens_drawn, "token", requests * CHOICES, 0, weights.config.vocab_size - 1)
        found.append(places(softmax(of_position, TEMPERATURE), sampled, chance))
        progress()
    return np.concatenate(found), runner


def check_first_positions(context: SuiteContext) -> CheckResult:
    """The suite: one question for each text."""
    if model_folder(SMOLLM2) is None:
        why = "SmolLM2-135M-Instruct is not on this machine; say assay model fetch, then run the gate again"
        return CheckResult(SUITE_ID, Verdict.UNKNOWN, note=why)
    again = {"suite": SUITE_ID, "profile": context.profile.value, "seed": context.seed}
    ledger, answers, failures, steps = Ledger(), [], [], 0
    reached = {"draws": 0, "rows computed": 0}
    texts = TEXTS if context.profile is Profile.NIGHTLY else TEXTS[:1]

    def progress() -> None:
        nonlocal steps
        steps += 1
        context.progress(steps, len(texts) * POSITIONS)

    with one_thread():
        for number, text in enumerate(texts):
            chance = np.random.default_rng([context.seed, number])
            seed = (context.seed << 32) + (number << 24)
            try:
                found, runner = places_drawn(text, REQUESTS[context.profile], seed, chance, progress)
            except Malformed as error:
                failure = Failure(unread(f"tokens of SmolLM2 along {text!r}", error), f"{context.seed:#x}", again)
                return CheckResult(SUITE_ID, Verdict.INVALID, invariants={"ST-2": 1}, failures=(failure,))
            counts = np.bincount((found * CELLS).astype(np.int64), minlength=CELLS)
            null = (
                f"tokens of SmolLM2 at {POSITIONS} positions along {text!r} stand in its softmax at temperature {TEMPERATURE} "
                f"as often as it says, in {CELLS} cells"
            )
            entry_id = f"smollm2-first-{number + 1}"
            answers.append(likelihood_statistic(entry_id, null, counts, ledger.take(entry_id)))
            reached["draws"] += int(counts.sum())
            reached["rows computed"] += runner.num_computed
            if answers[-1].verdict is Verdict.INVALID:
                question = Question(entry_id, "ST-2", "sampler", null, counts, np.full(CELLS, 1 / CELLS))
                failures.append(Failure(violation_of(question, answers[-1]), seed=f"{context.seed:#x}", world=again))
    return CheckResult(
        SUITE_ID,
        merge(each.verdict for each in answers),
        examples=reached["draws"],
        reached=reached,
        invariants={"ST-2": len(answers)},
        failures=tuple(failures),
        statistics=tuple(answers),
        note=f"{reached['draws']:,} tokens of the real model at {POSITIONS} positions of {len(texts)} texts; a total variation "
        f"of {max(each.tv_min for each in answers):.2%} of the law in {CELLS} cells is found with power "
        f"{min(each.power for each in answers):.3f}",
    )
