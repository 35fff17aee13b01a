"""Three bugs planted in the radix target, of kinds that paged-cache engines have had: what finds them shows that checks reach.

Each is a subclass that changes one decision and nothing else. Used by tests only.
"""

from __future__ import annotations

from engine_under_test.types import FinishReason, PlannedStep
from models.targets.page_tree import Node
from models.targets.radix import RadixTarget, Sequence


class HitPathNotLocked(RadixTarget):
    """A sequence locks what it computes but not what it found: eviction may take pages that it reads."""

    def _admit(self, path: list[Node]) -> Sequence:
        sequence = super()._admit(path)
        for node in path:
            node.locks -= 1
            self._tree.num_unlocked += node.locks == 0
        return sequence

    def _end(self, sequence: Sequence, reason: FinishReason, tokens: tuple[int, ...] = ()) -> None:
        node: Node | None = sequence.node
        while node is not None and node.depth > 0:
            if node.depth <= len(sequence.hit):
                self._tree.lock(node)  # undone by `unlock_path`, so that only the missing lock is wrong
            node = node.parent
        super()._end(sequence, reason, tokens)


class PublishedAtLaunch(RadixTarget):
    """Pages stand in the tree from the launch of the step that fills them, not from the commit of its result."""

    def plan(self) -> PlannedStep | None:
        step = super().plan()
        if step is not None and self._in_flight is not None:
            for sequence in self._in_flight[1]:
                self._publish(sequence)
        return step

    def _publish(self, sequence: Sequence) -> None:
        node = sequence.node
        for position, page in enumerate(sequence.taken, len(sequence.table)):
            label = sequence.label(position)
            if label in node.children:
                return
            node = self._tree.insert(node, label, page)

    def _commit_row(self, sequence: Sequence, tokens: tuple[int, ...]) -> None:
        while sequence.taken:
            child = sequence.node.children.get(sequence.label(len(sequence.table)))
            if child is None or child.page != sequence.taken[0]:
                break
            sequence.node = child
            sequence.table.append(child.page)
            sequence.taken = sequence.taken[1:]
        super()._commit_row(sequence, tokens)


class FreedAtAbortAndAgain(RadixTarget):
    """An abort frees the pages of the row in flight, and so does the result that comes late."""

    def _end(self, sequence: Sequence, reason: FinishReason, tokens: tuple[int, ...] = ()) -> None:
        if reason == FinishReason.ABORT:
            self._tree.give_back(sequence.taken)
        super()._end(sequence, reason, tokens)


PLANTED: tuple[type[RadixTarget], ...] = (HitPathNotLocked, PublishedAtLaunch, FreedAtAbortAndAgain)
