"""Keys and values that plans wrote, against those of the dense reference, in the invariant mode also against the plain run's.

Owns this comparison and its tolerance. A cell is what one position left in the store: keys, turned, and values of every layer.
Its place in the sequence and every token before it decide what it holds, so that a wrong one is seen even if no logit shows it.

A tolerance is a share of the spread (standard deviation) of the reference's numbers in that cell and layer.

Measured over 48,552 cells of 12 tiny models each, as shares of the spread (worst number of a cell and layer):

    type      median    1 in 1,000   worst     stated
    float32   5.8e-7    3.0e-6       4.5e-6    1e-4
    bfloat16  0.013     0.080        0.13      0.5
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from differential.stores import Written, WrittenRow
from properties.invariants.catalogue import CATALOGUE
from properties.verdict import Violation

TOLERANCES = {torch.float32: 1e-4, torch.bfloat16: 0.5}
Key = tuple[str, int]  # request and choice
Tokens = tuple[int, ...]


class CachedCells:
    """What the reference says of a token sequence, [2, layers, len, kv_heads, head]; most settings lead to the same ones."""

    def __init__(self, ask: Callable[[Tokens], torch.Tensor], most: int = 256) -> None:
        self._ask = ask
        self._most = most
        self._known: dict[Tokens, torch.Tensor] = {}

    def __call__(self, tokens: Tokens) -> torch.Tensor:
        if tokens not in self._known:
            if len(self._known) >= self._most:
                del self._known[next(iter(self._known))]
            self._known[tokens] = self._ask(tokens)
        return self._known[tokens]


@dataclass(frozen=True, slots=True)
class Compared:
    """How many cells were compared, and the first that is not as it should be."""

    num: int
    violation: Violation | None = None


def against_reference(
    written: Sequence[Written], sequences: Mapping[Key, Tokens], truth: CachedCells, share: float
) -> Compared:
    """SE-1: each cell is the reference's, within `share` of its spread."""
    parts = list(_known_parts(written, sequences))
    if not parts:
        return Compared(0)
    cells = torch.cat([part.cells for part in parts], dim=2)
    due = torch.cat([truth(sequences[part.key])[:, :, part.start : part.end] for part in parts], dim=2)
    spread = due.flatten(3).std(dim=3)
    shares = (cells.double() - due).abs().flatten(3).amax(dim=3) / spread  # [2, layers, n]
    bad = ~(shares <= share)  # also where it is not a number
    if not bad.any():
        return Compared(shares.shape[2])
    place = int(bad.any(dim=0).any(dim=0).nonzero()[0])
    what, layer = _first_of(bad[:, :, place])
    found = f"off by {float(shares[what, layer, place]):.4g} of their spread from the reference's"
    return Compared(shares.shape[2], _violation("SE-1", parts, place, what, layer, found, f"at most {share:g}"))


def against_plain(written: Sequence[Written], plain: Sequence[Written], sequences: Mapping[Key, Tokens]) -> Compared:
    """SE-4: in the invariant mode each cell has the bits of the plain run's."""
    others: dict[tuple[Key, int], torch.Tensor] = {}
    for part in _known_parts(plain, sequences):
        others.update({(part.key, part.start + place): part.cells[:, :, place] for place in range(part.end - part.start)})
    parts = []
    found = []
    for part in _known_parts(written, sequences):
        told = [others.get((part.key, position)) for position in range(part.start, part.end)]
        if all(each is not None for each in told):
            parts.append(part)
            found.append(torch.stack([each for each in told if each is not None], dim=2))
    if not parts:
        return Compared(0)
    cells, due = torch.cat([part.cells for part in parts], dim=2), torch.cat(found, dim=2)
    bad = (cells != due).flatten(3).any(dim=3)
    if not bad.any():
        return Compared(cells.shape[2])
    place = int(bad.any(dim=0).any(dim=0).nonzero()[0])
    what, layer = _first_of(bad[:, :, place])
    error = float((cells[what, layer, place] - due[what, layer, place]).abs().max())
    words = f"off by {error:.4g} from the plain run's"
    facts = ("plain run    wrote other bits",)
    return Compared(cells.shape[2], _violation("SE-4", parts, place, what, layer, words, "the same bits", facts))


@dataclass(frozen=True, slots=True, eq=False)
class _Part:
    key: Key
    plan_id: int
    start: int
    end: int
    cells: torch.Tensor


def _known_parts(written: Sequence[Written], sequences: Mapping[Key, Tokens]) -> Iterator[_Part]:
    """What was written of sequences that are known, as far as they are."""
    for each in written:
        for row in each.rows:
            key = row.request_id, row.choice
            end = min(row.end, len(sequences.get(key, ())))
            if row.start < end:
                yield _part(each, row, end)


def _part(written: Written, row: WrittenRow, end: int) -> _Part:
    cells = written.cells[:, :, row.begin : row.begin + end - row.start]
    return _Part((row.request_id, row.choice), written.plan_id, row.start, end, cells)


def _first_of(bad: torch.Tensor) -> tuple[int, int]:
    """The lowest layer comes first: what lies above it follows from it."""
    layer, what = bad.T.nonzero()[0].tolist()
    return what, layer


def _violation(
    invariant: str,
    parts: Sequence[_Part],
    place: int,
    what: int,
    layer: int,
    found: str,
    expected: str,
    facts: tuple[str, ...] = (),
) -> Violation:
    for part in parts:
        if place < part.end - part.start:
            break
        place -= part.end - part.start
    subject = (
        f"{('keys', 'values')[what]} of layer {layer} at position {part.start + place} of request {part.key[0]}, "
        f"choice {part.key[1]}, written by plan {part.plan_id}"
    )
    return Violation(invariant, CATALOGUE[invariant].name, subject, found, expected, facts)
