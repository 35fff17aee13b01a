"""The suite `spoiled-slots`: in small worlds each committed slot of KV is spoiled in turn, as soon as it is committed.

With a wrong number in it, of which nobody is told: the law notices at the very plan that reads it first (SE-1), with certainty
and not only when a token happens to change; and if no plan reads it before it is filled or written again, nothing is noticed,
for nothing is wrong (KV-16). With no number in it, which a device sees: the live requests that read it end with an error, and
nobody else notices anything (SE-2, SC-12), nor does who comes behind them with the same prompt: what was blamed once is not
found in the cache again.

Owns the enumeration, and who reads a slot, which it takes from the tables of the plans. It is the law that is tried here as
much as the engine: a cell that the law does not look at would show.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from chaos.memory_suite import short_walk
from chaos.storm import SHAPES
from engine_under_test.types import FinishReason, Output, PlannedStep, RowId
from models.build import world_from
from models.shrink import Spec, shrink_world
from models.world import World
from properties.invariants.predicate import violation
from properties.moment import Moment
from properties.op import Op, OpKind
from properties.suite import CheckResult, Failure, Profile, SuiteContext
from properties.verdict import Violation, verdict_of

SUITE_ID = "spoiled-slots"
_WORLDS = ("small", "small-deep", "priority")  # names in `SHAPES`
_AGAIN = "again"  # whoever comes with the prompt of a request that ended for a spoiled slot
_EVERY = 4  # of so many slots one is spoiled once more, in a story in which its request goes
_FLOORS = {"slots that were read": 20, "slots that nobody read": 4}  # in profile pr


@dataclass(frozen=True, slots=True)
class _Slot:
    """The ``position`` of a request, committed behind the first ``num_ops`` operations of a story. ``reader``: the operation at
    which the first plan that reads it from then on lands, if there is one; ``is_missed``: one of its readers is live then."""

    story: tuple[Op, ...]
    request_id: str
    position: int
    num_ops: int
    reader: int | None
    is_missed: bool

    def spoiled(self, is_wrong: bool) -> tuple[Op, ...]:
        """The story, and what befalls the slot in it. Where its reader ends for it, somebody comes with the same prompt as soon
        as that has ended."""
        spoil = Op(OpKind.SPOIL, request_id=self.request_id, k=self.position, on=is_wrong)
        until = self.reader + 1 if self.reader is not None and not is_wrong else len(self.story)
        again = () if until == len(self.story) else self._again()
        return (*self.story[: self.num_ops], spoil, *self.story[self.num_ops : until], *again, *self.story[until:])

    def _again(self) -> tuple[Op, ...]:
        asked = next(op.request for op in self.story if op.request is not None and op.request.request_id == self.request_id)
        return (Op(OpKind.ADD, replace(asked, request_id=_AGAIN, deadline_s=None)), *[Op(OpKind.STEP)] * 3)


@dataclass(slots=True)
class _Calm:
    """What happens where nothing is spoiled."""

    block_size: int
    landed: list[tuple[int, PlannedStep, frozenset[RowId]]] = field(default_factory=list)  # at which operation; live rows

    def see(self, moment: Moment) -> None:
        if moment.execution is not None:
            live = frozenset(each.row_id for each in moment.before.running)
            self.landed.append((moment.op_index, moment.execution.step, live))

    def reader_of(self, slot: int, from_op: int) -> tuple[int | None, bool]:
        """The operation at which the slot, or a copy of it, is read first, and whether by somebody who is live; None if it is
        filled or written again before."""
        size, spoiled = self.block_size, {slot}
        found: list[tuple[int, bool]] = []
        for ran, op_index, step, live in self._as_they_ran():
            if ran < from_op:
                continue
            reservation, plan = step.reservation, step.plan
            spoiled = {each for each in spoiled if each // size not in reservation.fills}
            for source, target, count in reservation.copies:
                spoiled -= {target * size + place for place in range(count)}
                spoiled |= {target * size + place for place in range(count) if source * size + place in spoiled}
            spoiled.difference_update(reservation.slots)
            readers = [
                row_id
                for row_id, table, start, num in zip(
                    plan.row_ids(), reservation.tables, plan.starts, plan.num_tokens, strict=True
                )
                if any(table[place // size] * size + place % size in spoiled for place in range(start + num))
            ]
            if readers:
                found.append((op_index, not live.isdisjoint(readers)))
        return min(found, default=(None, False))

    def _as_they_ran(self) -> Iterator[tuple[int, int, PlannedStep, frozenset[RowId]]]:
        """In the order of their launch, in which a device runs them, whatever the order of their results: by which operation
        each had run, and at which it landed."""
        ran = max((op_index for op_index, _, _ in self.landed), default=0)
        in_order = sorted(self.landed, key=lambda each: each[1].plan.plan_id, reverse=True)
        found = []
        for op_index, step, live in in_order:
            ran = min(ran, op_index)
            found.append((ran, op_index, step, live))
        return reversed(found)


def run_spoiled(context: SuiteContext) -> CheckResult:
    """Every slot of every world, both ways, up to the first that is not as it should be."""
    names = _WORLDS[: 1 if context.profile is Profile.QUICK else len(_WORLDS)]
    reached, evaluations, ops, failures = Counter[str](), Counter[str](), 0, tuple[Failure, ...]()
    for name in names:
        spec = {**SHAPES[name].spec(), "device": "plain"}
        base = (*short_walk(context.seed, SHAPES[name]), Op(OpKind.DRAIN))
        slots = tuple(_slots(spec, base))[:: 3 if context.profile is Profile.QUICK else 1]
        for done, slot in enumerate(slots):
            for is_wrong in (True, False):
                world = _spoiled(spec, slot, is_wrong)
                found = _unlike(world, slot, is_wrong)
                evaluations.update(world.evaluations)
                ops += world.ops
                if found is not None:
                    failures = (
                        _failure(found, context, spec, slot.spoiled(is_wrong), is_wrong or found is not world.violation),
                    )
                    break
            if failures:
                break
            reached["slots that nobody read" if slot.reader is None else "slots that were read"] += 1
            context.progress(done, len(slots))
        if failures:
            break
    missed = tuple(
        f"{what}: {reached[what]} of {floor}"
        for what, floor in _FLOORS.items()
        if context.profile is not Profile.QUICK and reached[what] < floor
    )
    return CheckResult(
        SUITE_ID,
        verdict_of(failures, missed),
        examples=2 * reached.total(),
        ops=ops,
        reached=dict(sorted(reached.items())),
        missed=() if failures else missed,
        invariants=dict(evaluations),
        failures=failures,
        note=f"each of {reached.total()} slots spoiled in turn, in {len(names)} worlds",
    )


def _failure(found: Violation, context: SuiteContext, spec: Spec, story: tuple[Op, ...], is_as_told: bool) -> Failure:
    """Shrunk, where the target broke a sentence; what nobody noticed is told whole."""
    name = f"{SUITE_ID}#{context.seed:#x}"
    if is_as_told:
        return Failure(found, name, spec, story)
    shrunk = shrink_world(spec, story, found, max_seconds=context.shrink_s)
    return Failure(shrunk.violation, name, shrunk.spec, shrunk.ops, len(story))


def _slots(spec: Spec, base: tuple[Op, ...]) -> Iterator[_Slot]:
    """Every position of every request, when it is first seen committed; some of them in stories in which their request goes
    right then, and the cache is emptied, so that hardly anybody reads them."""
    calm, places = _calm(spec, base)
    for (request_id, position), (num_ops, slot) in places.items():
        yield _Slot(base, request_id, position, num_ops, *calm.reader_of(slot, num_ops))
    for (request_id, position), (num_ops, slot) in list(places.items())[::_EVERY]:
        gone = (Op(OpKind.ABORT, request_id=request_id), Op(OpKind.RESET_CACHE))
        story = (*base[:num_ops], *gone, *base[num_ops:])
        yield _Slot(story, request_id, position, num_ops, *_calm(spec, story)[0].reader_of(slot, num_ops))


def _calm(spec: Spec, story: Sequence[Op]) -> tuple[_Calm, dict[tuple[str, int], tuple[int, int]]]:
    """What happens, and for each request and position the number of operations behind which it is committed, and its slot."""
    size = spec["config"]["block_size"]
    calm = _Calm(size)
    world = world_from(spec, on_moment=calm.see)
    places: dict[tuple[str, int], tuple[int, int]] = {}
    for number, op in enumerate(story, start=1):
        world.apply(op)
        for seq in reversed(world.snapshot.running):  # as SPOIL looks for it
            for position in range(min(seq.committed_len, len(seq.table) * size)):
                places.setdefault((seq.request_id, position), (number, seq.table[position // size] * size + position % size))
    return calm, places


def _spoiled(spec: Spec, slot: _Slot, is_wrong: bool) -> World:
    world = world_from(spec)
    world.run(slot.spoiled(is_wrong))
    return world


def _unlike(world: World, slot: _Slot, is_wrong: bool) -> Violation | None:
    """What is not as it should be."""
    seen, at = world.violation, world.ops + world.noops - 2  # from 0, and one operation is none of the calm run
    if slot.reader is None or not is_wrong:
        errors = [each.request_id for each in world.history.of(Output) if each.finish_reason is FinishReason.ERROR]
        if _AGAIN in errors and seen is None:
            subject = f"who comes behind {slot.request_id} with the same prompt"
            return violation("SE-2", subject, "an error, for a slot that was blamed before", "its tokens, as without a hit")
        if seen is not None or bool(errors) == slot.is_missed:
            return seen
    elif seen is not None and (seen.invariant, at) == ("SE-1", slot.reader):
        return None
    subject = f"position {slot.position} of {slot.request_id}, spoiled behind operation {slot.num_ops}"
    found = "noticed by nobody" if seen is None else f"noticed at operation {at} by {seen.invariant}: {seen.sentence}"
    due = f"noticed at operation {slot.reader}, which reads it first" if slot.reader is not None else "nobody who reads it"
    return replace(violation("SE-1", subject, found, due), facts=seen.facts if seen is not None else ())
