"""Claims about floors: they scale with the machine, quotients do not, and a miss is invalid."""

from __future__ import annotations

from itertools import islice

import pytest

from ci.bench.bench import Line, Measured
from ci.bench.scheduler import decoding_engine, iterate
from ci.bench.walk import calls_of, timed_run
from models.walk import small_shape, walk_ops
from properties.suite import Figure, Label
from properties.verdict import Verdict


def figure(value: float) -> Figure:
    return Figure("f", value, "1", Label.OBSERVED)


@pytest.mark.parametrize(
    ("line", "slowness", "is_met"),
    [
        pytest.param(Line(figure(700), at_least=700), 1.0, True, id="a floor that is met"),
        pytest.param(Line(figure(699), at_least=700), 1.0, False, id="a floor that is missed"),
        pytest.param(Line(figure(360), at_least=700), 2.0, True, id="half of a floor on half a machine"),
        pytest.param(Line(figure(5.9), at_most=3.0), 2.0, True, id="twice a ceiling on half a machine"),
        pytest.param(Line(figure(2.9), at_most=3.0), 0.5, False, id="a ceiling on twice the machine"),
        pytest.param(Line(figure(1.6), at_most=1.5, is_ratio=True), 2.0, False, id="a quotient on half a machine"),
        pytest.param(Line(figure(9e9)), 1.0, True, id="a figure of which nothing is asked"),
    ],
)
def test_a_line_is_judged_by(line: Line, slowness: float, is_met: bool) -> None:
    assert line.is_met(slowness) is is_met
    verdict = Verdict.VALID if is_met else Verdict.INVALID
    assert Measured("walk", (line,), slowness).verdict is verdict


def test_every_decode_of_the_load_is_in_every_iteration() -> None:
    engine = decoding_engine(running=16, waiting=8, pool=1024)
    before = engine.counters.emitted_tokens
    assert iterate(engine) > 0
    assert engine.counters.emitted_tokens - before == 16


def test_the_bare_run_makes_the_same_calls_without_the_checks() -> None:
    shape = small_shape()
    ops = tuple(islice(walk_ops(3, shape), 60))
    steps, checked_s, bare_s = timed_run(shape, ops)
    assert steps > 10
    assert 0 < bare_s < checked_s
    calls = [call for chunk in calls_of(shape, [ops[:30], ops[30:]]) for call in chunk]
    assert sum(name == "commit" for name, _ in calls) >= steps
    assert not {"snapshot", "take_events"} & {name for name, _ in calls}
