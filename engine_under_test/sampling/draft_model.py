"""A smaller model as proposer: it runs ahead of the target, with KV of its own, and says the law of every draft.

Owns: the blocks of its own store, what it has computed for each row, and the loop that draws drafts. Never: the target's KV, or
whether a draft stands. It computes through a runner like the target's, which it asks for logits only.

For each row it remembers the tokens that it has computed. A row of which fewer still hold (drafts that fell, steps that were
skipped, a choice that began anew) is computed again from the first that does not, so nothing but time hangs on being told.
A row for which it has no blocks left gets no drafts. It knows no grammars: what one forbids falls.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
import torch

from engine_under_test.sampling.adjustments import NO_PROCESSORS, Processors
from engine_under_test.sampling.processed import RowState, processed
from engine_under_test.sampling.speculation import Ask, Declaration, Knowledge, Proposal, Repair
from engine_under_test.sampling.verification import Law, draw
from engine_under_test.seams import Grammars, Noise
from engine_under_test.types import History, Plan, Request, Reservation, RowId, SamplingParams

_SILENT = SamplingParams(max_tokens=1)  # greedy: the runner draws nothing of its own


class LogitsLaunch(Protocol):
    @property
    def logits(self) -> torch.Tensor: ...


class LogitsRunner(Protocol):
    """A runner whose launches show their logits."""

    def launch(self, plan: Plan, reservation: Reservation) -> LogitsLaunch: ...


@dataclass(slots=True)
class _Kept:
    """What the draft model has computed of a row, and where it lies."""

    tokens: list[int] = field(default_factory=list)
    table: list[int] = field(default_factory=list)


class DraftModel:
    """Proposes up to `max_drafts` tokens a row, each drawn from the draft model's processed law behind the ones before it."""

    def __init__(
        self,
        runner: LogitsRunner,
        num_blocks: int,
        block_size: int,
        max_drafts: int = 4,
        processors: Processors = NO_PROCESSORS,
        grammars: Grammars | None = None,
    ) -> None:
        self._runner = runner
        self._block_size = block_size
        self._free = deque(range(1, num_blocks + 1))
        self._rows: dict[RowId, _Kept] = {}
        self._processors = processors
        self._grammars = grammars
        self._max_drafts = max_drafts
        self._plans = 0

    @property
    def declaration(self) -> Declaration:
        """See `speculation.Proposer`."""
        return Declaration("draft model", self._max_drafts, Knowledge.FULL, own_slots_per_token=1)

    @property
    def num_free_blocks(self) -> int:
        """Of its own store; all of them once every row was repaired for the last time."""
        return len(self._free)

    @property
    def num_rows(self) -> int:
        """Of which anything is kept; likewise none."""
        return len(self._rows)

    def propose(self, asks: Sequence[Ask], noise: Noise) -> Proposal:
        """See `speculation.Proposer`."""
        widths = [min(ask.width, self._max_drafts) if self._has_room(ask) else 0 for ask in asks]
        drafts: list[list[int]] = [[] for _ in asks]
        laws: list[list[torch.Tensor]] = [[] for _ in asks]
        for place in range(max(widths, default=0)):
            rows = [row for row, width in enumerate(widths) if width > place]
            table = self._laws([(asks[row], drafts[row]) for row in rows])
            found = draw(
                Law(table, torch.arange(len(rows), device=table.device)[:, None]),
                np.array([asks[row].params.seed for row in rows], np.uint64),
                np.array([asks[row].row.choice for row in rows], np.uint32),
                np.array([len(asks[row].tokens) + place for row in rows], np.uint32),
                noise,
            ).tolist()
            for number, row in enumerate(rows):
                drafts[row].append(found[number])
                laws[row].append(table[number])
        known = [law for of_row in laws for law in of_row]
        return Proposal(tuple(map(tuple, drafts)), torch.stack(known) if known else None)

    def repair(self, repairs: Sequence[Repair]) -> None:
        """See `speculation.Proposer`. Blocks behind what is confirmed are given back."""
        for each in repairs:
            kept = self._rows.get(each.row)
            if kept is None:
                continue
            del kept.tokens[each.confirmed :]
            self._give_back(kept)
            if each.confirmed == 0:
                del self._rows[each.row]

    def _has_room(self, ask: Ask) -> bool:
        """Takes the blocks for everything that may be computed for an ask, or none."""
        kept = self._rows.setdefault(ask.row, _Kept())
        goal = len(ask.tokens) + min(ask.width, self._max_drafts) - 1
        missing = -(-goal // self._block_size) - len(kept.table)
        if missing > len(self._free) or not ask.tokens:
            if not kept.table:
                del self._rows[ask.row]
            return False
        kept.table += [self._free.popleft() for _ in range(missing)]
        return True

    def _give_back(self, kept: _Kept) -> None:
        needed = -(-len(kept.tokens) // self._block_size)
        self._free.extend(kept.table[needed:])
        del kept.table[needed:]

    def _laws(self, wanted: Sequence[tuple[Ask, Sequence[int]]]) -> torch.Tensor:
        """[rows, vocabulary] float64: the processed law behind the tokens of each ask and its drafts so far."""
        texts = [(*ask.tokens, *drafts) for ask, drafts in wanted]
        starts = []
        for (ask, _drafts), text in zip(wanted, texts, strict=True):
            kept = self._rows[ask.row]
            starts.append(min(_common(kept.tokens, text), len(text) - 1))
            del kept.tokens[starts[-1] :]  # nothing from here on holds until it has been computed
        plan, reservation = self._step([ask for ask, _drafts in wanted], texts, starts)
        states = [
            RowState(self._params_of(ask), History(tuple(ask.tokens[: ask.prompt_len]), text[ask.prompt_len :]))
            for (ask, _drafts), text in zip(wanted, texts, strict=True)
        ]
        laws = processed(self._runner.launch(plan, reservation).logits, states, self._processors, self._grammars)
        for (ask, _drafts), text in zip(wanted, texts, strict=True):
            self._rows[ask.row].tokens = list(text)
        return laws

    def _params_of(self, ask: Ask) -> SamplingParams:
        """What drafts of a row are drawn by. Without what compiles grammars they heed none, and fall where one forbids them."""
        return ask.params if self._grammars is not None else replace(ask.params, grammar=None)

    def _step(self, asks: Sequence[Ask], texts: Sequence[tuple[int, ...]], starts: Sequence[int]) -> tuple[Plan, Reservation]:
        """One plan of the draft model's own: what is missing of each text, and the logits behind it."""
        self._plans += 1
        size, num = self._block_size, len(asks)
        tables = tuple(tuple(self._rows[ask.row].table) for ask in asks)
        places = [range(start, len(text)) for start, text in zip(starts, texts, strict=True)]
        slots = [
            table[at // size] * size + at % size for table, positions in zip(tables, places, strict=True) for at in positions
        ]
        plan = Plan(
            plan_id=self._plans,
            generation=0,
            requests=tuple(Request(ask.row.request_id, tuple(ask.tokens), _SILENT) for ask in asks),
            choices=tuple(ask.row.choice for ask in asks),
            incarnations=tuple(ask.row.incarnation for ask in asks),
            epochs=tuple(ask.row.epoch for ask in asks),
            starts=tuple(starts),
            num_tokens=tuple(map(len, places)),
            token_ids=tuple(text[at] for text, positions in zip(texts, places, strict=True) for at in positions),
            num_pending=(0,) * num,
            samples=(True,) * num,
            hit_blocks=((),) * num,
        )
        return plan, Reservation(self._plans, tables, tuple(slots), ((),) * num)


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens both begin with."""
    for place, (mine, its) in enumerate(zip(one, other, strict=False)):
        if mine != its:
            return place
    return min(len(one), len(other))
