"""Tokens a second of the real model: this engine against `generate` of transformers, on the same weights and threads.

Owns the load, the pairs and what is asked of them. Both sides decode greedily, in float32, to lengths that are given, and
nothing is remembered from one run to the next (the prefix cache is off). They take turns, run by run, and who begins
changes, so that whatever else the machine does falls on both; a ratio is that of one pair.

    batch 1    one request at a time
    batch 8    requests in a queue, at most eight at once: `generate` takes eight of them, left-padded, and is done with
               them when the longest is; the engine lets the next one in when one has ended

A rate counts only for the same work, so the tokens of both sides must be the same. Both round in float32, each in an order of
its own: of two tokens that tie either may come, and all behind it differs. Hence one job of a run, even the longest, may
differ. (Measured: none does.)
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from ci.bench.bench import Line, NotMeasurable
from ci.bench.calibration import calibrate
from ci.environment import require_extra
from engine_under_test import Engine, EngineConfig, Request, SamplingParams
from engine_under_test.execution.transformer import TransformerRunner
from engine_under_test.model.fetch import SMOLLM2, model_folder
from engine_under_test.model.load import load_weights
from engine_under_test.model.tokenizer import load_tokenizer
from properties.suite import Figure, Label

FLOORS = {1: 1.0, 8: 1.5}  # given: tokens a second over those of transformers, by batch
PAIRS = 10
_BLOCKS = 12  # for one sequence: more than the longest job needs
LENGTHS = (8, 16, 24, 32, 40, 48, 56, 64)  # of outputs, in tokens
TEXTS = (
    "The first person who walked on the moon was",
    "def fibonacci(n):\n    if n < 2:\n        return n\n",
    "Once upon a time, in a small village between two rivers, there lived a clockmaker who",
    "The capital of France is Paris. The capital of Italy is Rome. The capital of Spain is",
    "To make bread you need flour, water, salt and",
    "Q: Why is the sky blue?\nA:",
    "It was the best of times, it was the worst of times, it was the age of wisdom, it was",
    "SELECT name, COUNT(*) FROM orders GROUP BY",
)


@dataclass(frozen=True, slots=True)
class Job:
    """A prompt, and how many tokens shall follow it."""

    prompt: tuple[int, ...]
    length: int


Outputs = list[tuple[int, ...]]
Run = Callable[[Sequence[Job]], Outputs]


@dataclass(frozen=True, slots=True)
class Pair:
    """One run of each side over the same jobs, in seconds."""

    num_tokens: int
    ours_s: float
    theirs_s: float
    num_equal: int  # tokens that are the same on both sides

    @property
    def ratio(self) -> float:
        return self.theirs_s / self.ours_s


def measure_engine(say: Callable[[str], None]) -> tuple[list[Line], list[float]]:
    """The lines, and the calibration times of the run."""
    folder = model_folder()
    if folder is None:
        raise NotMeasurable(
            f"{SMOLLM2.title} must have been fetched before it can be measured, and it was not; run assay model fetch"
        )
    require_extra("reference", "the comparison with transformers")
    say(f"engine: loading {SMOLLM2.title} on both sides, {torch.get_num_threads()} threads each")
    tokenizer = load_tokenizer(folder)
    prompts = [tokenizer.encode(text) for text in TEXTS]
    ours, theirs = engine_run(folder), generate_run(folder)
    lines: list[Line] = []
    calibrations: list[float] = []
    for batch, floor in FLOORS.items():
        pairs = []
        warm_up = jobs_of(prompts, batch, 0, most=4)
        ours(batch)(warm_up), theirs(batch)(warm_up)
        for number in range(PAIRS):
            say(f"engine: batch {batch}, pair {number + 1} of {PAIRS}")
            calibrations.append(calibrate())
            pairs.append(run_pair(jobs_of(prompts, batch, number), ours(batch), theirs(batch), ours_first=number % 2 == 0))
        lines += lines_of(batch, floor, pairs)
    return lines, calibrations


def jobs_of(prompts: Sequence[tuple[int, ...]], batch: int, number: int, most: int = max(LENGTHS)) -> list[Job]:
    """The jobs of one pair: another prompt and length each time at batch 1; a queue of twice as many, shuffled, at batch 8."""
    count = 1 if batch == 1 else 2 * batch
    places = [(number * 3 + place * 5 + place // len(LENGTHS)) % len(LENGTHS) for place in range(count)]
    return [Job(prompts[(place + number) % len(prompts)], min(LENGTHS[at], most)) for place, at in enumerate(places)]


def run_pair(jobs: Sequence[Job], ours: Run, theirs: Run, *, ours_first: bool) -> Pair:
    """Both sides once."""
    if ours_first:
        (ours_s, mine), (theirs_s, yours) = _timed(ours, jobs), _timed(theirs, jobs)
    else:
        (theirs_s, yours), (ours_s, mine) = _timed(theirs, jobs), _timed(ours, jobs)
    num_equal = sum(one == other for pair in zip(mine, yours, strict=True) for one, other in zip(*pair, strict=True))
    return Pair(sum(job.length for job in jobs), ours_s, theirs_s, num_equal)


def _timed(run: Run, jobs: Sequence[Job]) -> tuple[float, Outputs]:
    began = time.perf_counter()
    outputs = run(jobs)
    seconds = time.perf_counter() - began
    for job, tokens in zip(jobs, outputs, strict=True):
        if len(tokens) != job.length:
            raise AssertionError(f"a job is timed up to its length of {job.length} tokens, found {len(tokens)}")
    return seconds, outputs


def lines_of(batch: int, floor: float, pairs: Sequence[Pair]) -> list[Line]:
    """Rates as observed, and what is asked: the median of the pairs' ratios."""
    name = f"engine.batch {batch}"
    ours = statistics.median(pair.num_tokens / pair.ours_s for pair in pairs)
    theirs = statistics.median(pair.num_tokens / pair.theirs_s for pair in pairs)
    ratio = statistics.median(pair.ratio for pair in pairs)
    num_tokens = sum(pair.num_tokens for pair in pairs)
    equal = sum(pair.num_equal for pair in pairs) / num_tokens
    one_job = max(LENGTHS) / num_tokens
    note = f"median of {len(pairs)} pairs, {min(p.ratio for p in pairs):.2f} to {max(p.ratio for p in pairs):.2f}"
    return [
        Line(Figure(f"{name}, tokens_per_s", ours, "1/s", Label.OBSERVED, "median of the runs")),
        Line(Figure(f"{name}, transformers' tokens_per_s", theirs, "1/s", Label.OBSERVED, "median of the runs")),
        Line(Figure(f"{name}, over transformers", ratio, "1", Label.OBSERVED, note), at_least=floor, is_ratio=True),
        Line(
            Figure(f"{name}, share of equal tokens", equal, "1", Label.OBSERVED, "a tie may flip, and all behind it differs"),
            at_least=1 - one_job,
            is_ratio=True,
        ),
    ]


def engine_run(folder: Path) -> Callable[[int], Run]:
    """This engine, by batch; the engines share a runner, since only one is at work at a time."""
    weights = load_weights(folder)
    shared = EngineConfig(num_blocks=_BLOCKS * max(FLOORS), vocab_size=weights.config.vocab_size, prefix_cache=False)
    runner = TransformerRunner(weights, shared.num_blocks, shared.block_size, packs_weights=True)

    def run_of(batch: int) -> Run:
        engine = Engine(replace(shared, max_num_seqs=batch), runner)

        def run(jobs: Sequence[Job]) -> Outputs:
            found: Outputs = [()] * len(jobs)
            for number, job in enumerate(jobs):
                answer = engine.submit(Request(str(number), job.prompt, SamplingParams(max_tokens=job.length)))
                assert answer.is_accepted, answer.message
            while engine.has_work:
                engine.step()
            for output in engine.take_outputs():
                found[int(output.request_id)] += output.token_ids
            return found

        return run

    runs = {batch: run_of(batch) for batch in FLOORS}
    return runs.__getitem__


def generate_run(folder: Path) -> Callable[[int], Run]:
    """`generate` of transformers, by batch: a batch of so many jobs, then the next."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    transformers: Any = import_module("transformers")  # it has no types for what is used here
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0

    class AtLength(transformers.StoppingCriteria):  # type: ignore[misc]  # transformers has no types
        """Each row ends at a length of its own."""

        def __init__(self, ends: torch.Tensor) -> None:
            self._ends = ends

        def __call__(self, input_ids: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
            return self._ends <= input_ids.shape[1]

    def run_batch(jobs: Sequence[Job]) -> Outputs:
        width = max(len(job.prompt) for job in jobs)
        tokens = torch.tensor([[0] * (width - len(job.prompt)) + list(job.prompt) for job in jobs])
        mask = torch.tensor([[0] * (width - len(job.prompt)) + [1] * len(job.prompt) for job in jobs])
        lengths = [job.length for job in jobs]
        ends = AtLength(torch.tensor(lengths) + width)
        with torch.inference_mode():
            found = model.generate(
                tokens, attention_mask=mask, do_sample=False, max_new_tokens=max(lengths), stopping_criteria=[ends]
            )
        return [tuple(row[width : width + length].tolist()) for row, length in zip(found, lengths, strict=True)]

    def run_of(batch: int) -> Run:
        return lambda jobs: [tokens for at in range(0, len(jobs), batch) for tokens in run_batch(jobs[at : at + batch])]

    runs = {batch: run_of(batch) for batch in FLOORS}
    return runs.__getitem__
