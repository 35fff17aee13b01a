"""The suite `smollm2-statistics`: what an engine draws from a real model at the first position is that model's softmax. (ST-2)

Many choices and seeds behind a prompt (at night two), through batches, forks and the prefix cache, one token each; the law is
the softmax of the reference's float64 logits, its tokens pooled in falling order into at most sixteen cells. Where it was
not fetched the suite is unknown and says what to do. Never: a second try.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from differential.error_budget import Ledger, Probabilities
from differential.reference import reference_logits
from differential.sampling_stats import Question, judge, softmax, violation_of
from differential.setting import SMOLLM2, ModelSpec, weights_of
from differential.threads import one_thread
from engine_under_test.config import EngineConfig
from engine_under_test.engine import Engine
from engine_under_test.execution.transformer import TransformerRunner
from engine_under_test.model.fetch import model_folder
from engine_under_test.model.tokenizer import load_tokenizer
from engine_under_test.types import Request, SamplingParams
from properties.suite import CheckResult, Failure, Profile, SuiteContext
from properties.verdict import Verdict, merge

SUITE_ID = "smollm2-statistics"
PROMPTS = ("Once upon a time, in a small", "My favourite colour is")
DRAWS = {Profile.PR: 2560, Profile.NIGHTLY: 32_768}  # behind each prompt, of which profile pr takes the first
TEMPERATURE = 0.9
_MOST_CELLS, _LEAST = 16, 1000
_CHOICES = 64  # of a request


def cells_of(law: Probabilities, num: int) -> npt.NDArray[np.int64]:
    """The cell of each token: falling, each of about the same mass, and no more than expect enough."""
    wanted = max(2, min(_MOST_CELLS, num // _LEAST))
    order = np.argsort(-law, kind="stable")
    found = np.zeros(len(law), np.int64)
    cell, filled = 0, 0.0
    for token in order.tolist():
        found[token] = cell
        filled += law[token]
        if filled >= (cell + 1) / wanted and cell < wanted - 1:
            cell += 1
    while cell > 0 and (masses := np.bincount(found, weights=law)).min() * num < _LEAST:
        least = max(int(masses.argmin()), 1)  # joins the one before it
        found[found >= least] -= 1
        cell -= 1
    return found


def drawn(engine: Engine, name: str, prompt: Sequence[int], num: int, first_seed: int) -> Iterator[int]:
    """The first token of so many choices."""
    for number in range(num // _CHOICES):
        sampling = SamplingParams(max_tokens=1, temperature=TEMPERATURE, seed=(first_seed + number) % 2**64, n=_CHOICES)
        answer = engine.submit(Request(f"{name} {number}", tuple(prompt), sampling))
        assert answer.is_accepted, answer.message
        while engine.has_work:
            engine.step()
        for output in engine.take_outputs():
            yield from output.token_ids


def check_first_positions(context: SuiteContext) -> CheckResult:
    """The suite: one question for each prompt."""
    folder = model_folder(SMOLLM2)
    if folder is None:
        why = "SmolLM2-135M-Instruct is not on this machine; say assay model fetch, then run the gate again"
        return CheckResult(SUITE_ID, Verdict.UNKNOWN, note=why)
    again = {"suite": SUITE_ID, "profile": context.profile.value, "seed": context.seed}
    ledger, answers, failures = Ledger(), [], []
    num, prompts = DRAWS[context.profile], PROMPTS if context.profile is Profile.NIGHTLY else PROMPTS[:1]
    with one_thread():
        tokenizer, weights = load_tokenizer(folder), weights_of(ModelSpec(SMOLLM2))
        config = EngineConfig(num_blocks=256, vocab_size=weights.config.vocab_size, max_num_seqs=_CHOICES)
        for number, text in enumerate(prompts):
            context.progress(number, len(prompts))
            prompt = tokenizer.encode(text)
            engine = Engine(config, TransformerRunner(weights, config.num_blocks, config.block_size))
            logits = reference_logits(weights, prompt, begin=len(prompt) - 1)[0].numpy()
            law = softmax(logits, TEMPERATURE)
            cell = cells_of(law, num)
            cells = int(cell.max()) + 1
            tokens = list(drawn(engine, f"p{number}", prompt, num, (context.seed << 32) + (number << 16)))
            question = Question(
                f"smollm2-first-{number + 1}",
                "ST-2",
                "sampler",
                f"first tokens of SmolLM2 behind {text!r}, in {cells} cells, follow its softmax at temperature {TEMPERATURE}",
                np.bincount(cell[tokens], minlength=cells),
                np.asarray(np.bincount(cell, weights=law), np.float64),
            )
            answers.append(judge(question, ledger))
            if answers[-1].verdict is Verdict.INVALID:
                failures.append(Failure(violation_of(question, answers[-1]), seed=f"{context.seed:#x}", world=again))
    context.progress(len(prompts), len(prompts))
    return CheckResult(
        SUITE_ID,
        merge(each.verdict for each in answers),
        examples=num * len(prompts),
        invariants={"ST-2": len(answers)},
        failures=tuple(failures),
        statistics=tuple(answers),
        note=f"{num * len(prompts):,} first tokens of the real model; a total variation of the law pooled as each test says, "
        f"{max(each.tv_min for each in answers):.2%} is found with power {min(each.power for each in answers):.3f}",
    )
