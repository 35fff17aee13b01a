"""Rows that are kept from step to step, beside a dict: operations as values, their one interpreter, and how a walk is shrunk.

Owns the reference (what each request is, its table, its output, by name in a dict) and the plans that follow from it. Never how
rows are kept, nor the sentence that judges them (`properties.kept_rows`). Each operation is total: where it does not apply it
does nothing.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from engine_under_test.execution.rows import KeptRows, RowFields
from engine_under_test.types import Adapter, BlockCopy, LogprobsMode, Media, Plan, Request, Reservation, RowId, SamplingParams
from properties.fewest import at_most, fewest
from properties.kept_rows import due_fields, rows_are_what_the_plan_says
from properties.verdict import Violation

SIZE: Final = 4
_LENGTH: Final = 40
_MOST_ROWS: Final = 14
_WEIGHTS: Final = {
    "join": 14,
    "end": 8,
    "end the first": 3,
    "step": 40,
    "step without some": 8,
    "preempt": 4,
    "share": 5,
    "give up": 8,
    "another order": 5,
    "restart": 1,
}
KINDS: Final = tuple(_WEIGHTS)

# What requests ask for, beside a seed of their own. Most ask for one thing that hardly anybody else has.
ASKED: Final[tuple[SamplingParams, ...]] = (
    SamplingParams(),
    SamplingParams(),
    SamplingParams(temperature=0.8),
    SamplingParams(temperature=0.7, top_k=3),
    SamplingParams(temperature=1.2, top_p=0.9, min_p=0.05),
    SamplingParams(min_tokens=3, stop_token_ids=(5, 6)),
    SamplingParams(repetition_penalty=1.3),
    SamplingParams(frequency_penalty=0.5, presence_penalty=-0.5),
    SamplingParams(logit_bias=((3, 2.0),)),
    SamplingParams(bad_words=((1, 2),), allowed_token_ids=(1, 2, 3)),
    SamplingParams(processors=("none",)),
    SamplingParams(temperature=0.5, logprobs=2, logprobs_mode=LogprobsMode.PROCESSED),
    SamplingParams(prompt_logprobs=1),
)


class RowsOp(NamedTuple):
    """``one`` and ``two``: numbers of any size; each kind takes from them what it needs."""

    kind: str
    one: int = 0
    two: int = 0

    def __str__(self) -> str:
        return f"{self.kind} {self.one} {self.two}"


@dataclass(slots=True)
class Told:
    """All that is to be known of a row."""

    request: Request
    choice: int
    incarnation: int
    epoch: int = 0
    committed: int = 0
    table: list[int] = field(default_factory=list)
    output: list[int] = field(default_factory=list)
    is_shared: bool = False  # the block that it writes next is copied first

    @property
    def row_id(self) -> RowId:
        return RowId(self.request.request_id, self.choice, self.incarnation, self.epoch)


class RowsWorld:
    """A worker's rows beside a dict. ``violation``: the first; nothing is done after it."""

    def __init__(self) -> None:
        self.rows = KeptRows(SIZE)
        self.told: dict[str, Told] = {}
        self.reached: Counter[str] = Counter()
        self.violation: Violation | None = None
        self.num_checks = 0
        self._generation = 1
        self._num_joined = 0
        self._num_plans = 0
        self._num_blocks = 0
        self._options: list[SamplingParams] = []  # of the newest plan's rows, by place
        self._in_flight: dict[tuple[RowId, int], int] = {}

    # Requests come and go

    def join(self, one: int, two: int) -> None:
        """A request, its prompt up to two blocks and a bit long."""
        if len(self.told) == _MOST_ROWS:
            return
        number = self._num_joined = self._num_joined + 1
        sampling = replace(ASKED[one % len(ASKED)], seed=1000 + number, max_tokens=64, n=1 + two % 2)
        if any(_has_more(sampling, each.request.sampling) for each in self.told.values()):
            self.reached["options that the others lack"] += 1
        prompt = tuple((number + place) % 9 for place in range(1 + two % (2 * SIZE + 3)))
        media = (Media(f"image {number}", 0, len(prompt)),) if one % 7 == 3 else ()
        adapter = Adapter("styled", number) if one % 5 == 2 else None
        request = Request(f"r{number}", prompt, sampling, adapter=adapter, media=media)
        self.told[request.request_id] = Told(request, two % 2, number)

    def end(self, one: int) -> None:
        if self.told:
            name = list(self.told)[one % len(self.told)]
            self.reached["rows that end in front of others"] += name != list(self.told)[-1]
            del self.told[name]

    def preempt(self, one: int) -> None:
        """It begins again, with its output."""
        if self.told:
            row = list(self.told.values())[one % len(self.told)]
            row.epoch, row.committed, row.table, row.is_shared = row.epoch + 1, 0, [], False
            self.reached["preempted"] += 1

    def share(self, one: int) -> None:
        if self.told:
            list(self.told.values())[one % len(self.told)].is_shared = True

    def reorder(self, one: int) -> None:
        if len(self.told) > 1:
            names = list(self.told)
            random.Random(one).shuffle(names)
            self.reached["other orders"] += names != list(self.told)
            self.told = {name: self.told[name] for name in names}

    def restart(self) -> None:
        """Tables are gone, whoever is there begins again."""
        self._generation += 1
        self._in_flight.clear()
        for row in self.told.values():
            row.epoch, row.committed, row.table, row.is_shared = row.epoch + 1, 0, [], False
        self.reached["restarts"] += 1

    # Steps

    def give_up(self, one: int, two: int) -> None:
        """One or two plans run on the device, and the host gives them up: it is as it was before."""
        before = deepcopy(self.told)
        for _ in range(1 + one % 2):
            self.step(two, 0)
        if self.told != before:
            self.reached["plans given up"] += 1
        self.told = before

    def step(self, one: int, two: int) -> None:
        """A plan of every row but those whose turn `two` says it is to rest; the rows follow it, and sample. ``one``: how many
        tokens a step the prompts have, how many of its own tokens the host does not know yet, and how many drafts there are."""
        resting = {name for number, name in enumerate(self.told) if two >> number % 8 & 1}
        active = [row for name, row in self.told.items() if name not in resting]
        self.reached["rows that rest"] += len(resting)
        if not active or self.violation is not None:
            return
        num_drafts = one // 18 % 4 if one % 3 == 0 else 0  # a draft is made of tokens that the host knows
        plan, reservation = self._plan(active, num_chunk=1 + one % 6, lag=one % 3, num_drafts=num_drafts)
        self._count(plan)
        self.rows.follow(plan, reservation, lambda row_id, position: self._in_flight[row_id, position])
        self._judge(plan, reservation, active, "")
        gone = [self._sample(plan, row, each) for row, each in enumerate(active)]
        self._judge(plan, reservation, active, "behind its tokens", gone)

    def _sample(self, plan: Plan, row: int, told: Told) -> int:
        """The row's tokens, some of its drafts among them; how many of these do not stand."""
        drafts = plan.num_drafts[row] if plan.num_drafts else 0
        first = plan.starts[row] + plan.num_tokens[row] - drafts
        num_gone = 0
        if plan.samples[row]:
            num_gone = (told.incarnation + first) % (drafts + 1)
            tokens = [(7 * told.incarnation + first + place) % 9 for place in range(drafts - num_gone + 1)]
            self._in_flight.update({(told.row_id, first + place): token for place, token in enumerate(tokens)})
            self.rows.sampled(row, tokens, drafts)
            told.output += tokens
            self.reached["drafts that do not stand"] += num_gone
            self.reached["drafts that stand"] += drafts - num_gone
        told.committed = first + drafts - num_gone
        del told.table[-(-told.committed // SIZE) :]
        return num_gone

    def _plan(self, active: Sequence[Told], num_chunk: int, lag: int, num_drafts: int) -> tuple[Plan, Reservation]:
        self._num_plans += 1
        drafts: list[int] = []
        tables, new_blocks, copies = [], [], []
        counts = []
        for each in active:
            whole = len(each.request.prompt) + len(each.output)
            drafts.append(num_drafts if each.output and whole - each.committed == 1 else 0)
            counts.append(min(num_chunk, whole - each.committed) + drafts[-1])
            taken: list[int] = []
            place, offset = divmod(each.committed, SIZE)
            if each.is_shared and offset:
                copies.append(BlockCopy(each.table[place], self._block(), offset))
                each.table[place] = copies[-1].target
                taken.append(each.table[place])
            each.is_shared = False
            while len(each.table) * SIZE < each.committed + counts[-1]:
                each.table.append(self._block())
                taken.append(each.table[-1])
            tables.append(tuple(each.table))
            new_blocks.append(tuple(taken))
        self.reached["blocks copied"] += len(copies)
        asks = [each.request.sampling.needs_history for each in active]
        plan = Plan(
            self._num_plans,
            self._generation,
            tuple(each.request for each in active),
            tuple(each.choice for each in active),
            tuple(each.incarnation for each in active),
            tuple(each.epoch for each in active),
            tuple(each.committed for each in active),
            tuple(counts),
            (0,) * sum(counts),
            (0,) * len(active),
            tuple(
                each.committed + n >= len(each.request.prompt) + len(each.output)
                for each, n in zip(active, counts, strict=True)
            ),
            ((),) * len(active),
            tuple(_known(e, lag, self._in_flight) if asks_it else None for e, asks_it in zip(active, asks, strict=True))
            if any(asks)
            else (),
            tuple(drafts) if any(drafts) else (),
        )
        return plan, Reservation(self._num_plans, tuple(tables), (1,) * sum(counts), tuple(new_blocks), tuple(copies))

    def _block(self) -> int:
        self._num_blocks += 1
        return self._num_blocks

    def _judge(self, plan: Plan, reservation: Reservation, active: Sequence[Told], when: str, gone: Sequence[int] = ()) -> None:
        if self.violation is not None:
            return
        due = [
            due_fields(
                plan,
                reservation,
                row,
                SIZE,
                tuple(each.output) if each.request.sampling.needs_history else None,
                gone[row] if gone else 0,
            )
            for row, each in enumerate(active)
        ]
        self.num_checks += len(due)
        found = _fields_of(self.rows)
        violation = rows_are_what_the_plan_says(found, due) or _array_differs(self.rows, due)
        if violation is not None:
            facts = (f"{'after':<13} plan {plan.plan_id}{f', {when}' if when else ''}",)
            self.violation = replace(violation, facts=facts)

    def _count(self, plan: Plan) -> None:
        sampling = [each.sampling for each in plan.requests]
        self.reached["steps"] += 1
        self.reached["most rows"] = max(self.reached["most rows"], len(sampling))
        self.reached["steps of fewer rows"] += len(sampling) < len(self._options)
        taken = zip(sampling, self._options, strict=False)
        self.reached["places of a row with an option"] += sum(one != other and _has_more(other, one) for one, other in taken)
        self._options = sampling


def _known(told: Told, lag: int, in_flight: Mapping[tuple[RowId, int], int]) -> tuple[int, ...]:
    """The output as the host knows it; the last tokens are in flight, if the row has sampled them since it began."""
    output = told.output
    while lag and output and (told.row_id, len(told.request.prompt) + len(output) - 1) in in_flight:
        output, lag = output[:-1], lag - 1
    return tuple(output)


def _has_more(one: SamplingParams, other: SamplingParams) -> bool:
    plain = SamplingParams()
    names = set(SamplingParams.__slots__) - {"seed", "max_tokens", "n"}
    return any(getattr(one, name) != getattr(plain, name) == getattr(other, name) for name in names)


def _fields_of(rows: KeptRows) -> list[RowFields]:
    return [rows.fields(row) for row in range(len(rows))]


def _array_differs(rows: KeptRows, due: Sequence[RowFields]) -> Violation | None:
    """The arrays that a step hands on hold the rows, and the padding block behind each; nothing stands behind the last."""
    for row in range(len(rows.lengths)):
        table = due[row].table if row < len(due) else ()
        length = due[row].length if row < len(due) else 0
        found = tuple(rows.tables[row].tolist())
        padded = (*table, *(0,) * (len(found) - len(table)))
        if found != padded or int(rows.lengths[row]) != length:
            said = f"length {rows.lengths[row]}, table {found}"
            return Violation("SC-13", "rows", f"place {row} of the arrays", said, f"length {length}, table {padded}")
    return None


# Walks


def apply(world: RowsWorld, op: RowsOp) -> None:
    """Does the operation, unless something has been found."""
    if world.violation is None:
        _VERBS[op.kind](world, op)


_VERBS: Final[Mapping[str, Callable[[RowsWorld, RowsOp], None]]] = {
    "join": lambda world, op: world.join(op.one, op.two),
    "end": lambda world, op: world.end(op.one),
    "end the first": lambda world, _op: world.end(0),
    "step": lambda world, op: world.step(op.one, 0),
    "step without some": lambda world, op: world.step(op.one, op.two),
    "preempt": lambda world, op: world.preempt(op.one),
    "share": lambda world, op: world.share(op.one),
    "give up": lambda world, op: world.give_up(op.one, op.two),
    "another order": lambda world, op: world.reorder(op.one),
    "restart": lambda world, _op: world.restart(),
}


def draw(seed: int) -> tuple[RowsOp, ...]:
    """The walk of a seed."""
    chance = random.Random(seed)
    kinds = chance.choices(list(_WEIGHTS), list(_WEIGHTS.values()), k=_LENGTH)
    return tuple(RowsOp(kind, chance.randrange(1000), chance.randrange(1000)) for kind in kinds)


def run(ops: Sequence[RowsOp]) -> RowsWorld:
    """A new world after these operations, with a step behind them."""
    world = RowsWorld()
    for op in (*ops, RowsOp("step")):
        apply(world, op)
    return world


def shrink(ops: Sequence[RowsOp], most_runs: int = 300) -> tuple[RowsOp, ...]:
    """Fewer operations that still lead to a violation."""
    return fewest(ops, lambda left: run(left).violation is not None, at_most(most_runs))
