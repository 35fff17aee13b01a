"""Replays a workload of a language model: its requests, the plans they led to, and where it diverges, seen by both oracles.

Owns the story of such a run; the comparison with what the file promised is that of every replay (`replay.py`). Never changes
the file. Imports torch inside, since no other command needs it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ci.float_rows import input_lines, logit_lines, name_of
from ci.op_words import describe_op
from ci.replay import Replayed
from ci.replay_file import ReplayFile
from ci.timeline import Scene
from ci.wording import count
from engine_under_test.types import Plan
from properties.op import Op
from properties.verdict import Violation

if TYPE_CHECKING:
    from differential.judging import Judged, Oracles

_MOST_PLANS = 40
_WITH_LOGITS = 3  # the last plans, of which --verbose shows the logits too


def replay_floats(file: ReplayFile, until: int | None = None) -> Replayed:
    """Runs the requests again, at most the first `until`, and judges everything. Raises BadInput if the world, or the model,
    is not to be had."""
    from differential.judging import Judge, describe_setting
    from differential.setting import weights_of, world_of
    from differential.shrinking import requests_of
    from differential.threads import one_thread

    world = world_of(file.world)
    weights_of(world.model)
    ops = file.ops if until is None else file.ops[:until]
    requests = requests_of(ops)
    header = f"{count(len(requests), 'request')} on {world.model.words} · {describe_setting(world)}"
    if not requests:
        return Replayed(file, header, (), None)
    with one_thread():
        judge = Judge(world.model)
        judged = judge.judge(world, requests)
        scenes = tuple(_scenes(ops, judged, judge.oracles))
    return Replayed(file, header, scenes, judged.violation, num_left=len(file.ops) - len(ops))


def _scenes(ops: Sequence[Op], judged: Judged, oracles: Oracles) -> Iterator[Scene]:
    """The requests, the plans up to the one that sampled the token, and the comparison."""
    number = 0
    for number, op in enumerate(ops, start=1):
        yield _scene(number, *describe_op(op), is_noop=op.request is None)
    told = _plans_told(judged)
    for plan in told[-_MOST_PLANS:]:
        number += 1
        state = (*input_lines(plan), *(logit_lines(plan, judged, oracles) if plan in told[-_WITH_LOGITS:] else ()))
        yield _scene(number, f"plan {plan.plan_id}", count(plan.num_rows, "row"), tuple(_rows(plan, judged)), state)
    told_of = "every token and logit with both oracles" if judged.violation is None else judged.violation.subject
    yield _scene(number + 1, "compare", told_of, violation=judged.violation)


def _plans_told(judged: Judged) -> tuple[Plan, ...]:
    divergence, plans = judged.divergence, judged.ran.plans
    if divergence is None:
        return plans
    sampled = [place for place, plan in enumerate(plans) if _samples(plan, divergence.request_id, divergence.position)]
    return plans[: sampled[-1] + 1] if sampled else plans


def _samples(plan: Plan, request_id: str, position: int) -> bool:
    rows = zip(plan.requests, plan.starts, plan.num_tokens, plan.samples, strict=True)
    return any(
        is_sampled and each.request_id == request_id and start + num == position for each, start, num, is_sampled in rows
    )


def _rows(plan: Plan, judged: Judged) -> Iterator[str]:
    """ "a: positions 4..8 → token 2 is 17"."""
    tokens = {(each.request.request_id, each.choice): each.tokens for each in judged.ran.emitted}
    for row, (request, start, num) in enumerate(zip(plan.requests, plan.starts, plan.num_tokens, strict=True)):
        end = start + num
        name = name_of(request, plan.choices[row])
        found = f"{name}: positions {start}..{end - 1}" if num > 1 else f"{name}: position {start}"
        index, emitted = end - len(request.prompt), tokens.get((request.request_id, plan.choices[row]), ())
        if plan.samples[row] and index < len(emitted):
            found += f" → token {index} is {emitted[index]}"
        yield f"{found}{', a chunk' if not plan.samples[row] else ''}"


def _scene(
    number: int,
    title: str,
    detail: str,
    changes: tuple[str, ...] = (),
    state: tuple[str, ...] = (),
    *,
    is_noop: bool = False,
    violation: Violation | None = None,
) -> Scene:
    return Scene(number, title, detail, is_noop, changes, blocks={}, state=state, violation=violation)
