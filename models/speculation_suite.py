"""Walks in worlds whose engine speculates: every depth, narrow and wide, drafts that know the law and drafts that do not.

Owns the worlds, how much of them, and what must have been reached for a verdict. What a walk does stands in `models.walk`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from models.draft_reach import DRAFT_REACHES
from models.reach import Reach
from models.walk import WalkShape, large_shape, one_by_one, speculating_shape
from models.walk_suite import run_shapes
from properties.suite import CheckResult, Profile, Suite, SuiteContext


def _in_trouble(shape: WalkShape) -> WalkShape:
    return replace(shape, fault_rate=0.1, abort_rate=0.08)


SHAPES: dict[str, WalkShape] = {
    "speculating": _in_trouble(speculating_shape()),
    "speculating-deep": _in_trouble(speculating_shape(1, width=4)),
    "speculating-deeper": _in_trouble(one_by_one(speculating_shape(2, width=2))),
    "speculating-drawn": _in_trouble(speculating_shape(1, "drawing", sampled_share=0.9, dropping_share=0.5)),
    "speculating-lookup": speculating_shape(0, "lookup", 4),
    "speculating-large": large_shape(1, speculation={"proposer": "knowing", "width": 4}, keeps_rows=True),
}
_WORK = {Profile.QUICK: (1, 120), Profile.PR: (1, 900), Profile.NIGHTLY: (30, 3000)}  # walks a shape, ops a walk
_RARE = (Reach.DRAFTS_STOPPED, Reach.DRAFTS_LOST, Reach.DRAFTS_AHEAD)


def floors(profile: Profile) -> Mapping[Reach, int]:
    """How often each state of drafts must be reached."""
    common, rare, rarest = {Profile.QUICK: (1, 0, 0), Profile.PR: (20, 3, 1), Profile.NIGHTLY: (400, 60, 20)}[profile]
    found = {reach: rare if reach in _RARE else common for reach in DRAFT_REACHES}
    return found | {Reach.DRAFTS_LATE: rarest}


def _run(context: SuiteContext) -> CheckResult:
    walks, num_ops = _WORK[context.profile]
    return run_shapes(context, "speculation", SHAPES, walks, num_ops, floors(context.profile))


SPECULATION = Suite("speculation", "walks of an engine that speculates", _run, share_s=10.0, has_walk_seeds=True)
