"""The cost of drawing: verifications a second of the vectorised check, our pipeline against the logits processors of
transformers, and what verification of drafts costs a step.

    check      verifications of the engine's own code on a law that all rows share, drafts drawn, noise at hand, outcomes
               counted: what decides how fine a statistical test may be. As the suite `verification-law` makes them: what
               depends on a law alone is computed once for all rows (`differential/shared_law.py`), all else row by row
    pipeline   from logits of a vocabulary of 49,152 to tokens, with the steps that both sides know: repetition penalty, bias,
               bad words, minimum length, temperature, top-k, top-p, min-p, draw. Both sides take turns, and who begins changes
    a step     verification of drafts of eight rows from processed laws, beside drawing as many tokens without drafts

Owns the loads and what is asked of them. Processor time, one thread.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np

from ci.bench.bench import Line, NotMeasurable
from ci.bench.calibration import calibrate
from differential.suites import is_installed
from properties.suite import Figure, Label

CHECK_FLOOR = 1e6  # given: verifications a second a core
PIPELINE_CEILING = 0.5  # given: our time over that of transformers
VOCABULARY = 49_152
_ROUNDS, _CHECK_ROWS, _CHECK_BATCHES = 15, 1 << 15, 6
_PROMPT = 200
_NEW = 40  # tokens that each row has emitted

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Load:
    """``top_k`` 0: none, so that top-p sees the whole vocabulary."""

    rows: int
    top_k: int

    @property
    def name(self) -> str:
        return f"{self.rows} rows, {f'top-k {self.top_k}, ' if self.top_k else ''}top-p"


LOADS = (Load(1, 50), Load(8, 50), Load(32, 50), Load(8, 0))
_BIAS = ((17, 1.5), (4099, -2.0))
_BAD_WORDS = ((7, 8), (90, 91, 92), (1234,))
_STOP = 2


def measure_sampling(say: Say) -> tuple[list[Line], list[float]]:
    """The lines, and the calibration times of the run."""
    for extra in ("model", "reference"):
        if not is_installed(extra):
            raise NotMeasurable(f"it needs the extra {extra!r}; say pip install -c constraints.txt -e '.[model,reference]'")
    from differential.threads import one_thread

    calibrations: list[float] = []
    with one_thread():
        lines = _check_lines(say, calibrations)
        for load in LOADS:
            say(f"sampling: pipeline, {load.name}")
            lines += _pipeline_lines(load, calibrations)
        say("sampling: verification of drafts, a step")
        lines += _verification_lines(calibrations)
    return lines, calibrations


# The vectorised check


def _check_lines(say: Say, calibrations: list[float]) -> list[Line]:
    from differential.verification_cases import FOUR, Case
    from differential.verification_draws import WIDE_CASE

    one = Case("32 tokens, one draft", WIDE_CASE.target, WIDE_CASE.proposed, 1)
    lines = []
    for case in (FOUR, one, WIDE_CASE):
        say(f"sampling: check, {case.name}")
        rates = []
        for number in range(_ROUNDS):
            calibrations.append(calibrate())
            rates.append(check_rate(case, number))
        note = f"a core, {case.width} drafts each, drawn and judged"
        figure = Figure(
            f"sampling.check, {case.name}, verifications_per_s", statistics.median(rates), "1/s", Label.OBSERVED, note
        )
        lines.append(Line(figure, at_least=CHECK_FLOOR))
    return lines


def check_rate(case: Any, seed: int, rows: int = _CHECK_ROWS, batches: int = _CHECK_BATCHES) -> float:
    """Verifications a second, outcomes counted. Numbers are drawn before the clock starts."""
    from differential.exact_law import Variables
    from differential.shared_law import SHARED
    from differential.verification_cases import Addresses, steps
    from differential.verification_draws import WIDE_CASE, ends, tally

    noise = Variables(values=np.random.default_rng(seed).random((rows, 4 * case.width + 4)))
    at = Addresses.first(rows)
    steps(case, SHARED, noise, at)
    began = time.process_time()
    num = 0
    for _ in range(batches):
        found = steps(case, SHARED, noise, at)
        num += sum(tally(ends(found) if case is WIDE_CASE else found).values())
    return num / (time.process_time() - began)


# The pipeline


def _pipeline_lines(load: Load, calibrations: list[float]) -> list[Line]:
    pairs = []
    for number in range(_ROUNDS):
        calibrations.append(calibrate())
        pairs.append(time_pair(load, number))
    ours, theirs = (statistics.median(times) for times in zip(*pairs, strict=True))
    ratios = [one / other for one, other in pairs]
    note = f"median of {len(ratios)} pairs, {min(ratios):.2f} to {max(ratios):.2f}"
    name = f"sampling.pipeline, {load.name}"
    return [
        Line(Figure(f"{name}, ms", ours * 1e3, "ms", Label.OBSERVED, "a step, median")),
        Line(Figure(f"{name}, transformers' ms", theirs * 1e3, "ms", Label.OBSERVED, "a step, median")),
        Line(
            Figure(f"{name}, over transformers", statistics.median(ratios), "1", Label.OBSERVED, note),
            at_most=PIPELINE_CEILING,
            is_ratio=True,
        ),
    ]


def time_pair(load: Load, number: int, repeats: int = 3) -> tuple[float, float]:
    """Processor seconds of one step of either side, over the same rows and the same options."""
    logits, texts = rows_of(load, number)
    sides = (_our_step(load, logits, texts, number), _their_step(load, logits, texts, number))
    order = (0, 1) if number % 2 == 0 else (1, 0)
    times = [0.0, 0.0]
    for side in order:
        sides[side]()
    for side in order * repeats:
        began = time.process_time()
        sides[side]()
        times[side] += time.process_time() - began
    return times[0] / repeats, times[1] / repeats


def rows_of(load: Load, number: int) -> tuple[Any, Any]:
    """Logits [rows, vocabulary] float32 with the long tail of a language model's, and texts [rows, prompt + output]."""
    import torch

    chance = np.random.default_rng(number)
    logits = chance.normal(size=(load.rows, VOCABULARY)) * 2.5 + np.where(chance.random((load.rows, VOCABULARY)) < 1e-3, 6, 0)
    texts = chance.integers(VOCABULARY, size=(load.rows, _PROMPT + _NEW))
    return torch.tensor(logits, dtype=torch.float32), torch.tensor(texts)


def _our_step(load: Load, logits: Any, texts: Any, number: int) -> Callable[[], Sequence[int]]:
    from engine_under_test.sampling.noise import PhiloxNoise
    from engine_under_test.sampling.sampler import Draws
    from engine_under_test.sampling.torch_sampler import sample_and_tell
    from engine_under_test.types import History, SamplingParams

    params = [
        SamplingParams(
            max_tokens=2 * _NEW, min_tokens=_NEW + 8, stop_token_ids=(_STOP,), temperature=0.8, seed=97 * number + row,
            top_k=load.top_k, top_p=0.9, min_p=0.02, repetition_penalty=1.2, logit_bias=_BIAS, bad_words=_BAD_WORDS,
        )
        for row in range(load.rows)
    ]  # fmt: skip
    told = [History(tuple(row[:_PROMPT]), tuple(row[_PROMPT:])) for row in texts.tolist()]
    draws = Draws(params, [0] * load.rows, [_PROMPT + _NEW] * load.rows, [_PROMPT] * load.rows, told)
    noise = PhiloxNoise()
    return lambda: sample_and_tell(logits, draws, noise).tokens


def _their_step(load: Load, logits: Any, texts: Any, number: int) -> Callable[[], Sequence[int]]:
    """The same steps in the order of `generate` of transformers, and its draw."""
    import torch

    made: Any = import_module("transformers.generation.logits_process")  # it has no types for what is used here
    steps = [
        made.SequenceBiasLogitsProcessor({(token,): amount for token, amount in _BIAS}),
        made.RepetitionPenaltyLogitsProcessor(1.2),
        made.NoBadWordsLogitsProcessor([list(word) for word in _BAD_WORDS], eos_token_id=torch.tensor([_STOP])),
        made.MinNewTokensLengthLogitsProcessor(_PROMPT, _NEW + 8, torch.tensor([_STOP])),
        made.TemperatureLogitsWarper(0.8),
        *([made.TopKLogitsWarper(load.top_k)] if load.top_k else []),
        made.TopPLogitsWarper(0.9),
        made.MinPLogitsWarper(0.02),
    ]
    pipeline = made.LogitsProcessorList(steps)
    generator = torch.Generator().manual_seed(number)

    def step() -> list[int]:
        scores = pipeline(texts, logits.clone())
        found: list[int] = torch.multinomial(scores.softmax(dim=-1), 1, generator=generator)[:, 0].tolist()
        return found

    return step


# Verification of drafts


def _verification_lines(calibrations: list[float]) -> list[Line]:
    times: dict[str, list[float]] = {name: [] for name in ("draw", "processed", "verify")}
    for number in range(_ROUNDS):
        calibrations.append(calibrate())
        for name, seconds in time_verification(8, 4, number).items():
            times[name].append(seconds)
    told = {
        "draw": "eight rows draw a token each, temperature 0.8, top-p 0.9",
        "processed": "the laws of eight rows with four drafts each, temperature 0.8, top-p 0.9",
        "verify": "which of them stand, and the token behind: noise, judgement and the race",
    }
    return [
        Line(Figure(f"sampling.step, {name}, ms", statistics.median(times[name]) * 1e3, "ms", Label.OBSERVED, told[name]))
        for name in times
    ]


def time_verification(rows: int, width: int, number: int) -> dict[str, float]:
    """Processor seconds of a step without drafts, and of the two halves of one with them."""
    import torch

    from engine_under_test.sampling.noise import PhiloxNoise
    from engine_under_test.sampling.processed import RowState, processed
    from engine_under_test.sampling.sampler import Draws
    from engine_under_test.sampling.speculation import Ask, Proposal
    from engine_under_test.sampling.torch_sampler import sample
    from engine_under_test.sampling.verification import rows_of as rows_of_asks
    from engine_under_test.sampling.verification import verify
    from engine_under_test.types import History, RowId, SamplingParams

    logits, texts = rows_of(Load(rows * (width + 1), 0), number)
    params = [SamplingParams(max_tokens=2 * _NEW, temperature=0.8, top_p=0.9, seed=number + row) for row in range(rows)]
    draws = Draws(params, [0] * rows, [_PROMPT + _NEW] * rows, [_PROMPT] * rows)
    asks = [Ask(RowId(str(row), 0, 0, 0), text, params[row], width, _PROMPT) for row, text in enumerate(texts[:rows].tolist())]
    states = [RowState(params[row], History((), ())) for row in range(rows) for _ in range(width + 1)]
    noise = PhiloxNoise()
    likely = logits.argmax(dim=1).tolist()
    proposal = Proposal(tuple(tuple(likely[row * (width + 1) : row * (width + 1) + width]) for row in range(rows)))
    laws = processed(logits, states)
    todo: dict[str, Callable[[], object]] = {
        "draw": lambda: sample(logits[:rows], draws, noise),
        "processed": lambda: processed(logits, states),
        "verify": lambda: verify(rows_of_asks(asks, proposal, laws), noise),
    }
    found = {}
    for name, call in todo.items():
        call()
        began = time.process_time()
        call()
        found[name] = time.process_time() - began
    assert torch.isfinite(laws).all()
    return found
