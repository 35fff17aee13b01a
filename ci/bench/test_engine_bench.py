"""Claims about `assay bench engine`: both sides do the same work, and the ratio is what decides."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from ci.bench import engine
from ci.bench.bench import Measured, NotMeasurable
from ci.bench.engine import FLOORS, LENGTHS, PAIRS, Job, Outputs, Pair, jobs_of, lines_of, run_pair
from ci.tiny import CONFIG
from engine_under_test.model.safetensors_file import save_llama
from engine_under_test.model.weights import tiny_random
from properties.verdict import Verdict

PROMPTS = [tuple(range(1, length)) for length in (4, 9, 3, 18, 6, 7, 30, 5)]


def test_every_length_and_prompt_comes_up_at_either_batch() -> None:
    alone = [jobs_of(PROMPTS, 1, number) for number in range(PAIRS)]
    assert {len(jobs) for jobs in alone} == {1}
    assert {jobs[0].length for jobs in alone} == set(LENGTHS) == {*range(8, 65, 8)}
    for number in range(PAIRS):
        jobs = jobs_of(PROMPTS, 8, number)
        assert sorted(job.length for job in jobs) == sorted([*LENGTHS] * 2)
        assert {job.prompt for job in jobs} == set(PROMPTS)


def test_both_sides_say_the_same_tokens_and_each_job_its_length(tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="the other side of the comparison is not installed")
    save_llama(tiny_random(CONFIG, seed=4), tmp_path)
    ours, theirs = engine.engine_run(tmp_path), engine.generate_run(tmp_path)
    for batch in FLOORS:
        jobs = jobs_of(PROMPTS, batch, 1, most=20)
        pair = run_pair(jobs, ours(batch), theirs(batch), ours_first=batch == 1)
        assert pair.num_equal == pair.num_tokens == sum(job.length for job in jobs)
        assert pair.ours_s > 0 < pair.theirs_s


def test_a_side_that_stops_early_is_not_timed() -> None:
    def whole(jobs: Sequence[Job]) -> Outputs:
        return [(0,) * job.length for job in jobs]

    def short(jobs: Sequence[Job]) -> Outputs:
        return [(0,) * (job.length - 1) for job in jobs]

    jobs = jobs_of(PROMPTS, 1, 0)
    assert run_pair(jobs, whole, whole, ours_first=True).num_equal == jobs[0].length
    with pytest.raises(AssertionError, match="up to its length"):
        run_pair(jobs, whole, short, ours_first=False)


@pytest.mark.parametrize(
    ("ratios", "batch", "verdict"),
    [
        pytest.param([0.5, 1.01, 9.0], 1, Verdict.VALID, id="a median above 1 at batch 1"),
        pytest.param([0.5, 0.99, 9.0], 1, Verdict.INVALID, id="a median below 1 at batch 1"),
        pytest.param([1.4, 1.5, 1.6], 8, Verdict.VALID, id="one and a half at batch 8"),
        pytest.param([1.4, 1.49, 1.6], 8, Verdict.INVALID, id="less at batch 8"),
    ],
)
def test_the_median_of_the_pairs_decides(ratios: list[float], batch: int, verdict: Verdict) -> None:
    lines = lines_of(batch, FLOORS[batch], [Pair(100, 1.0, ratio, 90) for ratio in ratios])
    measured = Measured("engine", tuple(lines), 1.0)
    assert measured.verdict is verdict
    assert [line.figure.value for line in lines] == [100, 100 / ratios[1], ratios[1], 0.9]


@pytest.mark.parametrize(
    ("num_equal", "verdict"),
    [
        pytest.param([1000, 1000, 1000 - max(LENGTHS)], Verdict.VALID, id="one job that leaves the path at a tie"),
        pytest.param([1000, 1000, 999 - max(LENGTHS)], Verdict.INVALID, id="a token more"),
    ],
)
def test_a_rate_counts_only_where_the_tokens_are_equal(num_equal: list[int], verdict: Verdict) -> None:
    lines = lines_of(8, FLOORS[8], [Pair(1000, 1.0, 9.0, equal) for equal in num_equal])
    assert Measured("engine", tuple(lines), 1.0).verdict is verdict


def test_without_the_model_it_says_how_to_have_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASSAY_CACHE", str(tmp_path))
    with pytest.raises(NotMeasurable, match="run assay model fetch"):
        engine.measure_engine(lambda _text: None)
