"""A run told as a story: each operation, what it changed in blocks and lengths, and the sentence that broke.

Owns the wording of differences between snapshots. It sees a target through its snapshots only, so it tells
the story of any target. Never judges.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ci.op_words import describe_op
from engine_under_test.types import PADDING_BLOCK, SequenceSnapshot, Snapshot
from properties.op import Op
from properties.verdict import Violation

_BLOCK_HISTORIES = 3
_BLOCK_NAMED = re.compile(r"\bblocks? (\d+)")


class Teller(Protocol):
    """What is needed of a World to tell its story."""

    target: Any

    @property
    def violation(self) -> Violation | None: ...

    def apply(self, op: Op) -> bool: ...


@dataclass(frozen=True, slots=True)
class Scene:
    """One operation. ``blocks``: the state of every block after it. ``state``: lines of the whole state, for --verbose."""

    number: int
    title: str
    detail: str
    is_noop: bool
    changes: tuple[str, ...]
    blocks: Mapping[int, str]
    state: tuple[str, ...]
    violation: Violation | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "op": self.number,
            "title": self.title,
            "detail": self.detail,
            "is_noop": self.is_noop,
            "changes": list(self.changes),
            "blocks": {str(block): state for block, state in self.blocks.items()},
            "violation": f"{self.violation.invariant} {self.violation.sentence}" if self.violation else None,
        }


def tell(world: Teller, ops: Iterable[Op]) -> tuple[Scene, ...]:
    """Applies the operations one by one, up to the first violation."""
    scenes: list[Scene] = []
    before = _look(world)
    for number, op in enumerate(ops, start=1):
        did_something = world.apply(op)
        after = _look(world)
        title, detail = describe_op(op)
        scenes.append(
            Scene(
                number,
                title,
                detail,
                is_noop=not did_something and world.violation is None,
                changes=tuple(_changes(before, after)) if before and after else (),
                blocks=block_states(after) if after else {},
                state=tuple(state_lines(after)) if after else (),
                violation=world.violation,
            )
        )
        before = after or before
        if world.violation is not None:
            break
    return tuple(scenes)


def block_histories(scenes: Sequence[Scene], violation: Violation | None) -> tuple[str, ...]:
    """ "block 3   empty → reserved(1) → owned(a) → empty ✗" for the blocks that the violation names, or that changed last."""
    named = _named_blocks(violation) if violation else []
    chosen = [block for block in named if scenes and block in scenes[-1].blocks] or _changed_last(scenes)
    lines = []
    for block in chosen[:_BLOCK_HISTORIES]:
        path = ["empty"]
        for scene in scenes:
            state = scene.blocks.get(block, "gone")
            if state != path[-1]:
                path.append(state)
        lines.append(f"block {block:<3} {' → '.join(path)}{' ✗' if violation and block in named else ''}")
    return tuple(lines)


def block_states(snapshot: Snapshot) -> dict[int, str]:
    """What each block is, in words; a block in two places shows both, one in none shows "nowhere"."""
    first = PADDING_BLOCK + 1
    states: dict[int, list[str]] = {block: [] for block in range(first, first + snapshot.num_blocks)}
    owners: dict[int, list[str]] = {}
    for sequence in snapshot.sequences():
        for block in sequence.table:
            owners.setdefault(block, []).append(choice_name(sequence))
    for block, names in owners.items():
        states.setdefault(block, []).append(f"owned({','.join(names)})")
    for plan, blocks in snapshot.reservations.items():
        for block in dict.fromkeys(blocks):
            states.setdefault(block, []).append(f"reserved({plan})")
    for block, plan in snapshot.quarantined.items():
        states.setdefault(block, []).append(f"quarantine({plan})")
    for block in snapshot.free:
        states.setdefault(block, []).append("cached" if block in snapshot.cached else "empty")
    for block in set(snapshot.pinned):
        states.setdefault(block, []).append("pinned")
    for block in snapshot.cached:
        if not states.get(block):  # evicted on demand: it stands in no queue
            states.setdefault(block, []).append("cached")
    return {block: " + ".join(words) or "nowhere" for block, words in sorted(states.items())}


def choice_name(sequence: SequenceSnapshot) -> str:
    """ "a", or "a.1" for a further choice."""
    return f"{sequence.request_id}.{sequence.choice}" if sequence.choice else sequence.request_id


def _look(world: Teller) -> Snapshot | None:
    """The snapshot, or None where the target is too broken to give one."""
    try:
        snapshot: Snapshot = world.target.snapshot()
    except Exception:
        return None
    return snapshot


def _changes(before: Snapshot, after: Snapshot) -> Iterable[str]:
    earlier = {(item.request_id, item.choice, item.incarnation): item for item in before.sequences()}
    later = {(item.request_id, item.choice, item.incarnation): item for item in after.sequences()}
    for key, item in later.items():
        if line := _sequence_change(earlier.get(key), item):
            yield f"{choice_name(item)}: {line}"
    yield from (f"{choice_name(item)}: ended" for key, item in earlier.items() if key not in later)
    if before.plans != after.plans:
        yield f"in flight: {' '.join(f'plan {plan}' for plan in after.plans) or 'nothing'}"
    was, now = block_states(before), block_states(after)
    moved: dict[str, list[int]] = {}
    for block, state in now.items():
        if was.get(block) != state and not state.startswith(("owned", "reserved")):
            moved.setdefault(state, []).append(block)
    yield from (f"{_blocks(blocks)} → {state}" for state, blocks in moved.items())
    for name in ("generation", "cache_generation"):
        if getattr(before, name) != getattr(after, name):
            yield f"{name.replace('_', ' ')} {getattr(before, name)} → {getattr(after, name)}"


def _sequence_change(before: SequenceSnapshot | None, after: SequenceSnapshot) -> str:
    parts = []
    if before is None or before.status is not after.status:
        parts.append(after.status.value)
    if before is not None and before.epoch != after.epoch:
        parts.append(f"epoch {before.epoch} → {after.epoch}")
    held, held_before = after.table + after.reserved, before.table + before.reserved if before else ()
    if held != held_before:
        parts.append(_blocks(held) if held else "no blocks")
    for name in ("committed_len", "scheduled_len", "visible_len"):
        value, was = getattr(after, name), getattr(before, name) if before else 0
        if value != was and (before is not None or name != "visible_len"):
            parts.append(f"{name.removesuffix('_len')} {was} → {value}")
    return "  ".join(parts)


def state_lines(snapshot: Snapshot) -> Iterable[str]:
    for sequence in snapshot.sequences():
        yield (
            f"{choice_name(sequence)} (incarnation {sequence.incarnation}, epoch {sequence.epoch}) {sequence.status}: "
            f"table {list(sequence.table)} reserved {list(sequence.reserved)} committed {sequence.committed_len} "
            f"scheduled {sequence.scheduled_len} allocated {sequence.allocated_len} visible {sequence.visible_len}"
        )
    yield f"free, next first: {list(snapshot.free)}"
    yield f"indexed: {sorted(snapshot.cached)}  quarantined: {dict(snapshot.quarantined)}"
    yield f"in flight: {list(snapshot.plans)}  unsettled: {list(snapshot.unsettled)}"


def _blocks(blocks: Sequence[int]) -> str:
    return f"block{'s' if len(blocks) > 1 else ''} {' '.join(map(str, blocks))}"


def _named_blocks(violation: Violation) -> list[int]:
    text = " ".join((violation.subject, violation.found, violation.expected, *violation.facts))
    return list(dict.fromkeys(int(number) for number in _BLOCK_NAMED.findall(text)))


def _changed_last(scenes: Sequence[Scene]) -> list[int]:
    if len(scenes) < 2:
        return []
    was, now = scenes[-2].blocks, scenes[-1].blocks
    return [block for block, state in now.items() if was.get(block) != state]
