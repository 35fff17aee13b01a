"""Walks in worlds whose requests often have a grammar: every depth, with drafts, with few blocks, with a remote pool.

Owns the worlds, how much of them, and what must have been reached for a verdict. What a walk does stands in `models.walk`. The
engine and the harness's device have grammars compiled by a library; the law has its own (`properties.small_grammars`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from engine_under_test.types import Request, SamplingParams
from models.compiled import IS_INSTALLED
from models.grammar_reach import GRAMMAR_REACHES
from models.reach import Reach
from models.walk import WalkShape, large_shape, one_by_one, remote_shape, small_shape, speculating_shape
from models.walk_suite import run_shapes
from properties.op import Op, OpKind
from properties.small_grammars import GRAMMARS, STOPS
from properties.suite import CheckResult, Profile, Suite, SuiteContext
from properties.verdict import Verdict


def with_grammars(shape: WalkShape) -> WalkShape:
    """Most requests of it have one, more goes wrong, and the runner keeps its rows."""
    return replace(shape, grammar_share=0.7, fault_rate=0.1, abort_rate=0.08, keeps_rows=True)


def _scarce() -> WalkShape:
    """Who is preempted has said something by then: by chance now and then, in what it begins with each time."""
    small = small_shape(1, num_live=5, begins=(*_outgrown(5), *_outgrown(10)))
    return replace(small, config=replace(small.config, num_blocks=8, max_num_seqs=6))


def _outgrown(first_token: int) -> tuple[Op, ...]:
    """Four that fit together, and do not with all that they say: four times one is preempted, and goes on later."""
    sampling = SamplingParams(max_tokens=16, grammar=GRAMMARS[-1], stop_token_ids=STOPS[:1])
    requests = [Request(f"tale-{first_token}-{number}", (first_token, number, 1, 2, 3), sampling) for number in range(4)]
    return (*[Op(OpKind.ADD, request=request) for request in requests], Op(OpKind.DRAIN))


SHAPES: dict[str, WalkShape] = {
    "grammars-scarce": with_grammars(_scarce()),
    "grammars-deeper": with_grammars(small_shape(2)),
    "grammars-remote": with_grammars(remote_shape(1)),
    "grammars-speculating": with_grammars(speculating_shape(1, width=4)),
    "grammars-speculating-deeper": with_grammars(one_by_one(speculating_shape(2, width=2))),
    "grammars-drawn": with_grammars(speculating_shape(0, "drawing", sampled_share=0.9, dropping_share=0.5)),
    "grammars-large": with_grammars(large_shape(1)),
}
_WORK = {Profile.QUICK: (1, 150), Profile.PR: (1, 400), Profile.NIGHTLY: (30, 3000)}  # walks a shape, ops a walk
_RARE = (Reach.GRAMMAR_RESUMED, Reach.GRAMMAR_LOST)


def floors(profile: Profile) -> Mapping[Reach, int]:
    """How often each state of rows with a grammar must be reached."""
    common, rare = {Profile.QUICK: (1, 0), Profile.PR: (30, 3), Profile.NIGHTLY: (4000, 400)}[profile]
    found = {reach: rare if reach in _RARE else common for reach in GRAMMAR_REACHES}
    return found | {Reach.ROWS_KEPT: 20 * common}


def _run(context: SuiteContext) -> CheckResult:
    if not IS_INSTALLED:
        why = (
            "it needs the extra 'grammar', found that llguidance is not installed; "
            "say pip install -c constraints.txt -e '.[grammar]'"
        )
        return CheckResult("grammar-walks", Verdict.UNKNOWN, note=why)
    walks, num_ops = _WORK[context.profile]
    return run_shapes(context, "grammar-walks", SHAPES, walks, num_ops, floors(context.profile))


GRAMMAR_WALKS = Suite(
    "grammar-walks", "walks of requests with grammars", _run, share_s=5.0, extras=("grammar",), has_walk_seeds=True
)
