"""Is what the sampler of real logits draws the processed softmax? (ST-2: temperature, min-p, top-k, top-p, and all of them)

One row of float32 logits of a random language model, sampled through the torch sampler at the addresses of a grid of its own
for each setting. The law is written out here, token by token in float64. Tokens that the setting drops must not be drawn at
all; over the others, pooled in falling order into cells of at least `LEAST_CELL`, Pearson's chi-square decides. Never: a
second try.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch

from differential.error_budget import Ledger, samples_needed
from differential.reference import reference_logits
from differential.sampling_stats import POWER, Question, judge, unread, violation_of
from differential.well_formed import Malformed, answered, whole_numbers
from engine_under_test.model.weights import LlamaConfig, tiny_random
from engine_under_test.sampling.noise import PhiloxNoise
from engine_under_test.sampling.sampler import Draws
from engine_under_test.sampling.torch_sampler import sample as torch_sample
from engine_under_test.seams import Noise
from engine_under_test.types import SamplingParams
from properties.suite import CheckResult, Failure, Profile, SuiteContext
from properties.verdict import Verdict, Violation, merge

SUITE_ID = "processed-sampler-statistics"
# The smallest total variation that every setting's test finds with `POWER`: it fixes the number of samples.
EFFECT = {Profile.QUICK: 0.04, Profile.PR: 0.03, Profile.NIGHTLY: 0.015}
LEAST_CELL = 0.05
VOCABULARY = 96
_ROWS_PER_BATCH = 256
_LEAST_EXPECTED = 1000  # as `pearson` wants it in each cell

TorchSample = Callable[[torch.Tensor, Draws, Noise], list[int]]


@dataclass(frozen=True, slots=True)
class Setting:
    """Parameters under test; its entry in the ledger has the same name. ``step``: logits are rounded to multiples of it, so
    that some are equal, as those of bfloat16 often are."""

    entry_id: str
    name: str
    params: SamplingParams
    step: float = 0.0

    def rounded(self, logits: torch.Tensor) -> torch.Tensor:
        """The row that is sampled from."""
        return (logits / self.step).round() * self.step if self.step else logits


WARM = SamplingParams(temperature=1.5)
SETTINGS = (
    Setting("processed-plain", "temperature alone", WARM),
    Setting("processed-min-p", "min-p", replace(WARM, min_p=0.05)),
    Setting("processed-top-k", "top-k", replace(WARM, top_k=12)),
    Setting("processed-top-p", "top-p", replace(WARM, top_p=0.8)),
    Setting("processed-ties", "top-k among equal logits", replace(WARM, top_k=12), step=0.5),
    Setting("processed-together", "min-p, top-k and top-p together", replace(WARM, min_p=0.02, top_k=20, top_p=0.9)),
)


def real_logits() -> torch.Tensor:
    """[VOCABULARY] float32: what a random language model says behind a few tokens."""
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=32, num_layers=2, num_heads=4, num_kv_heads=2, head_size=8, intermediate_size=64,
        ties_head=False,
    )  # fmt: skip
    return reference_logits(tiny_random(config, seed=3), (5, 17, 40, 8), torch.float32, begin=3)[0]


def processed_law(logits: Sequence[float], params: SamplingParams) -> list[float]:
    """The probability of each token, 0 for those that are dropped; `temperature` > 0."""
    top = max(logits)
    weights = [math.exp((logit - top) / params.temperature) for logit in logits]
    left = sorted(range(len(weights)), key=lambda token: (-weights[token], token))
    left = [token for token in left if weights[token] >= params.min_p]
    if params.top_k:
        left = left[: params.top_k]
    whole = math.fsum(weights[token] for token in left)
    nucleus: list[int] = []
    for token in left:
        if math.fsum(weights[one] for one in nucleus) >= params.top_p * whole:
            break
        nucleus.append(token)
    total = math.fsum(weights[token] for token in nucleus)
    return [weights[token] / total if token in nucleus else 0.0 for token in range(len(weights))]


def cells_of(law: Sequence[float]) -> list[list[int]]:
    """The tokens that can be drawn, in falling order, pooled until each cell has `LEAST_CELL`; what is left joins the last."""
    cells: list[list[int]] = [[]]
    for token in sorted((token for token, share in enumerate(law) if share > 0), key=lambda token: -law[token]):
        if math.fsum(law[one] for one in cells[-1]) >= LEAST_CELL:
            cells.append([])
        cells[-1].append(token)
    if len(cells) > 1 and math.fsum(law[one] for one in cells[-1]) < LEAST_CELL:
        rest = cells.pop()
        cells[-1] += rest
    return cells


def num_samples(effect: float, num_cells: int, entry_id: str) -> int:
    """Enough to find `effect`, and for every cell to expect what the test asks for."""
    needed = samples_needed(effect, num_cells, Ledger().take(entry_id), POWER)
    return max(needed, math.ceil(_LEAST_EXPECTED / LEAST_CELL))


def draw(logits: torch.Tensor, params: SamplingParams, first_seed: int, count: int, sample: TorchSample) -> list[int]:
    """One token at each of `count` addresses: seeds from `first_seed` on, eight choices, positions 0 to 31."""
    noise = PhiloxNoise()
    tokens: list[int] = []
    while len(tokens) < count:
        seeded = replace(params, seed=(first_seed + len(tokens) // _ROWS_PER_BATCH) % 2**64)
        places = range(_ROWS_PER_BATCH)
        draws = Draws([seeded] * len(places), [at % 8 for at in places], [at // 8 for at in places], [0] * len(places))
        drawn = answered("the sampler", partial(sample, logits.expand(len(places), -1), draws, noise))
        tokens += whole_numbers(drawn, "token", len(places), 0, VOCABULARY - 1).tolist()
    return tokens


def ask(
    setting: Setting, logits: torch.Tensor, law: Sequence[float], effect: float, first_seed: int, sample: TorchSample
) -> tuple[Question, Violation | None]:
    """The question of one setting with its counts, and what was drawn that can not be."""
    cells = cells_of(law)
    tokens = draw(logits, setting.params, first_seed, num_samples(effect, len(cells), setting.entry_id), sample)
    found = np.bincount(tokens, minlength=VOCABULARY)
    shares = np.array([math.fsum(law[token] for token in cell) for cell in cells])
    dropped = [token for token in range(VOCABULARY) if law[token] == 0 and found[token]]
    counts = np.array([found[cell].sum() for cell in cells])
    counts[-1] += len(tokens) - counts.sum()  # what can not be drawn counts as what is hardly ever drawn
    question = Question(
        setting.entry_id,
        "ST-2",
        "sampler",
        f"tokens follow the processed softmax of real logits, {setting.name}",
        counts,
        shares / shares.sum(),
    )
    if not dropped:
        return question, None
    said = f"token {dropped[0]} drawn {found[dropped[0]]} times, {len(dropped)} such tokens"
    return question, Violation("ST-2", "sampler", f"{len(tokens):,} samples, {setting.name}", said, "none that is dropped")


def check_processed(context: SuiteContext, sample: TorchSample = torch_sample) -> CheckResult:
    """The suite: one question for each setting, answered once."""
    ledger = Ledger()
    answers, failures, examples, cells = [], [], 0, []
    again = {"suite": SUITE_ID, "profile": context.profile.value, "seed": context.seed}  # the same samples, not another try
    for number, setting in enumerate(SETTINGS):
        context.progress(number, len(SETTINGS))
        logits = setting.rounded(real_logits())
        law = processed_law(logits.double().tolist(), setting.params)
        # Settings and runs whose seeds are near each other shall not share addresses: 2^29 seeds lie between them.
        first_seed = (context.seed << 32) + (number << 29)
        try:
            question, forbidden = ask(setting, logits, law, EFFECT[context.profile], first_seed % 2**64, sample)
        except Malformed as error:
            failures.append(Failure(unread(f"samples, {setting.name}", error), f"{context.seed:#x}", again))
            continue
        answer = judge(question, ledger)
        answers.append(answer)
        cells.append(len(question.law))
        examples += answer.n
        broken = [violation_of(question, answer)] if answer.verdict is Verdict.INVALID else []
        broken += [] if forbidden is None else [forbidden]
        failures += [Failure(one, seed=f"{context.seed:#x}", world=again) for one in broken]
    context.progress(len(SETTINGS), len(SETTINGS))
    if not answers:
        return CheckResult(SUITE_ID, Verdict.INVALID, invariants={"ST-2": len(SETTINGS)}, failures=tuple(failures))
    coarsest = max(answer.tv_min for answer in answers)
    return CheckResult(
        SUITE_ID,
        Verdict.INVALID if failures else merge(answer.verdict for answer in answers),
        examples=examples,
        invariants={"ST-2": 2 * len(SETTINGS)},
        failures=tuple(failures),
        statistics=tuple(answers),
        note=f"{len(answers)} settings over real logits, tokens pooled into {min(cells)} to {max(cells)} cells; "
        f"each finds a total variation of {coarsest:.2%} of the pooled law with power {POWER}",
    )
