"""Decodes in buckets, before watchful eyes: what a recording left behind is spoilt before the next step.

Owns the spoiling, so that whoever reads a row, a column or a result that he did not put there himself computes something else,
and the count of what was replayed. Judges nothing: the store, the logits and the tokens are judged as in every other run.
"""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import Protocol, runtime_checkable

import torch

from engine_under_test.execution.graphs import GraphCache, Rerun
from engine_under_test.types import Reservation


@runtime_checkable
class HasGraphs(Protocol):
    """A runner that has recordings, and has run whatever it was handed."""

    @property
    def graphs(self) -> GraphCache | None: ...


class BucketWatch:
    """``before``: each launch."""

    def __init__(self, runner: HasGraphs) -> None:
        self._runner = runner
        self._slots: tuple[int, ...] = (1,)
        self._counted: Counter[str] = Counter()
        self._rows: list[int] = []

    @torch.inference_mode()
    def before(self, reservation: Reservation) -> None:
        """Static inputs are rows as real as any: of a live slot, as long as their tables, and results are no numbers."""
        graphs = self._runner.graphs
        if graphs is None:
            return
        for static in graphs.statics.values():
            static.tokens.fill_(1)
            static.positions.fill_(3)
            static.slots.fill_(self._slots[-1])
            static.tables.fill_(1)
            static.lengths.fill_(static.tables.shape[1])
            static.is_row.fill_(True)
            self._counted["static inputs spoilt"] += 1
        for each in graphs.recordings.values():
            if isinstance(each, Rerun):
                each.output.fill_(torch.nan)
        if len(reservation.slots) == len(reservation.tables):  # decodes
            self._rows.append(len(reservation.slots))
        self._slots = reservation.slots or self._slots

    def reached(self) -> Counter[str]:
        """What was replayed, and how the number of rows went up and down."""
        graphs = self._runner.graphs
        if graphs is None:
            return self._counted
        found = Counter(self._counted)
        for (bucket, _width), times in graphs.replays.items():
            found[f"replays of bucket {bucket}"] += times
            found["recordings"] += 1
        largest = graphs.buckets.largest
        found["decodes above the largest bucket"] += sum(rows > largest for rows in self._rows)
        padded = [(rows, graphs.buckets.of(rows)) for rows in self._rows]
        found["replays with padding"] += sum(bucket is not None and rows < bucket for rows, bucket in padded)
        for (one, of_one), (other, of_other) in pairwise(padded):
            found["fewer rows in the same bucket"] += other < one and of_one == of_other
            found["more rows in the same bucket"] += other > one and of_one == of_other
            found["to a smaller bucket"] += of_one is not None and of_other is not None and of_other < of_one
            found["to a larger bucket"] += of_one is not None and of_other is not None and of_other > of_one
        return found
