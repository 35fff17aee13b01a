"""Runs a machine: a fixed number of examples of a fixed length from one seed, without a database and without a clock.

Owns Hypothesis's settings, so that a count of examples is the work of a gate and the same seed finds the same thing. What was
found is in the `Tally`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

import hypothesis
from hypothesis import HealthCheck, Phase, Verbosity
from hypothesis.internal.conjecture.providers import HypothesisProvider
from hypothesis.stateful import run_state_machine_as_test

from models.machines.portable import PortableMachine
from models.machines.tally import InvariantBroken, Tally


def run_machine(
    machine: type[PortableMachine],
    *,
    examples: int,
    steps: int,
    seed: int,
    on_example: Callable[[int], None] = lambda _done: None,
) -> Tally:
    """All examples, or up to the first violation, shrunk. Anything else that a machine raises passes through."""
    tally = Tally(on_example)
    with _no_mined_constants():
        _run(machine, tally, examples, steps, seed)
    return tally


def _run(machine: type[PortableMachine], tally: Tally, examples: int, steps: int, seed: int) -> None:
    runnable = hypothesis.seed(seed)(type(machine.__name__, (machine,), {"tally": tally}))
    try:
        run_state_machine_as_test(
            runnable,
            settings=hypothesis.settings(
                max_examples=examples,
                stateful_step_count=steps,
                database=None,
                deadline=None,
                derandomize=False,
                report_multiple_bugs=False,
                print_blob=False,
                verbosity=Verbosity.quiet,
                phases=(Phase.generate,),
                suppress_health_check=list(HealthCheck),  # a suite's work is fixed by counts, however slow a machine is
            ),
        )
    except InvariantBroken:
        assert tally.failure is not None


def _no_mined_constants() -> AbstractContextManager[Any]:
    """Hypothesis mixes in constants that it finds in the source of whatever modules are imported, and finds others when its
    cache of them is cold: the same seed would not do the same work. There is no setting for it."""
    return patch.object(HypothesisProvider, "_maybe_draw_constant", lambda *_args, **_kwargs: None)
