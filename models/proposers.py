"""Proposers of the harness: what they name is a function of a row's text, and what they keep of a row is looked at.

Owns a proposer that knows the law and names right and wrong drafts by turns, one that draws them from a law of its own, and the
keeping of what any proposer is asked and told, as one with KV of its own keeps it. Judges nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from engine_under_test.errors import BadInput
from engine_under_test.sampling.proposers import PromptLookup
from engine_under_test.sampling.speculation import Ask, Declaration, Knowledge, Proposal, Proposer, Repair
from engine_under_test.seams import Noise, Purpose
from engine_under_test.types import Request, RowId
from models.law import Law, Track

_MIXES = 0x9E3779B97F4A7C15


class Knowing:
    """Names the tokens that the law gives for the first few drafts, and wrong ones behind them; or fewer, or none. How many is
    a function of the row's text. It knows nothing of adapters, media and what adjusts logits: there it errs more often."""

    def __init__(self, vocab_size: int, max_drafts: int) -> None:
        self._law = Law(vocab_size)
        self._max_drafts = max_drafts
        self._tracks: dict[RowId, Track] = {}

    @property
    def declaration(self) -> Declaration:
        """See `speculation.Proposer`."""
        return Declaration("knowing", self._max_drafts, Knowledge.CERTAIN)

    def propose(self, asks: Sequence[Ask], noise: Noise) -> Proposal:
        """See `speculation.Proposer`."""
        del noise  # it computes what will be drawn
        return Proposal(tuple(map(self._of, asks)))

    def repair(self, repairs: Sequence[Repair]) -> None:
        """See `speculation.Proposer`."""
        for each in repairs:
            if each.confirmed == 0:
                self._tracks.pop(each.row, None)

    def _of(self, ask: Ask) -> tuple[int, ...]:
        chance = (sum(ask.tokens) * 31 + len(ask.tokens) * 7 + ask.row.choice) * _MIXES >> 32
        width = min(ask.width, self._max_drafts)
        num = min(chance % (width + 2), width)
        num_right = (chance >> 8) % (width + 2)
        known = len(ask.tokens)
        track = self._tracks.get(ask.row)
        if track is None:
            request = Request(ask.row.request_id, tuple(ask.tokens[: ask.prompt_len]), ask.params)
            track = self._tracks[ask.row] = self._law.open(request, ask.row.choice)
        self._law.cut(track, known)
        track.tokens[:] = ask.tokens
        drafts = []
        for place in range(num):
            self._law.extend([track], [known + place])
            (token,) = self._law.next_tokens([track], [known + place])
            if place >= num_right:
                token = (token + 1 + chance % (self._law.vocab_size - 1)) % self._law.vocab_size
            drafts.append(token)
            track.tokens.append(token)
        self._law.cut(track, known)
        return tuple(drafts)


class Drawing:
    """Draws each draft from a law that is a function of the text before it, and says so."""

    def __init__(self, vocab_size: int, max_drafts: int) -> None:
        self._vocab_size = vocab_size
        self._max_drafts = max_drafts

    @property
    def declaration(self) -> Declaration:
        """See `speculation.Proposer`."""
        return Declaration("drawing", self._max_drafts, Knowledge.FULL)

    def propose(self, asks: Sequence[Ask], noise: Noise) -> Proposal:
        """See `speculation.Proposer`."""
        laws: list[npt.NDArray[np.float64]] = []
        found = []
        for ask in asks:
            drafts: list[int] = []
            for _ in range(min(ask.width, self._max_drafts)):
                laws.append(self._law(sum(ask.tokens) + 5 * sum(drafts) + 3 * len(drafts)))
                where = (np.array([ask.params.seed], np.uint64), np.array([ask.row.choice], np.uint32))
                position = np.array([len(ask.tokens) + len(drafts)], np.uint32)
                numbers = noise.uniform(*where, position, Purpose.DRAFT, self._vocab_size)[0]
                drafts.append(int((-np.log(numbers) / laws[-1]).argmin()))
            found.append(tuple(drafts))
        return Proposal(tuple(found), np.array(laws) if laws else None)

    def repair(self, repairs: Sequence[Repair]) -> None:
        """Nothing is kept."""

    def _law(self, number: int) -> npt.NDArray[np.float64]:
        """Few tokens are likely, others hardly."""
        weights = np.array([1 + (number * (token + 3) * 7 + token) % 5 * 8 for token in range(self._vocab_size)], np.float64)
        found: npt.NDArray[np.float64] = weights / weights.sum()
        return found


class Keeping:
    """Any proposer, and what one with KV of its own keeps of each row: the tokens computed last, drafts and all, until it is
    told which of them stand. ``strange``: what it was asked or told that does not fit together, in words."""

    def __init__(self, proposer: Proposer) -> None:
        self._proposer = proposer
        self.kept: dict[RowId, list[int]] = {}
        self._laws: dict[RowId, Any] = {}
        self.strange: list[str] = []
        self.num_repaired = 0  # rows in which a draft fell, and was taken back

    @property
    def declaration(self) -> Declaration:
        """See `speculation.Proposer`."""
        return self._proposer.declaration

    def law_of(self, row: RowId) -> Any:
        """What the drafts that were proposed last for a row were drawn from, if they were drawn and it is still known."""
        return self._laws.get(row)

    def lengths(self) -> dict[RowId, int]:
        """How many tokens are kept of each row."""
        return {row: len(tokens) for row, tokens in self.kept.items()}

    def propose(self, asks: Sequence[Ask], noise: Noise) -> Proposal:
        """See `speculation.Proposer`."""
        proposal = self._proposer.propose(asks, noise)
        end = 0
        for ask, drafts in zip(asks, proposal.drafts, strict=True):
            end += len(drafts)
            if proposal.probabilities is not None:
                self._laws[ask.row] = proposal.probabilities[end - len(drafts) : end]
            kept = self.kept.get(ask.row, ())
            if list(kept) != list(ask.tokens[: len(kept)]):
                self.strange.append(f"{ask.row} is asked for drafts behind {list(ask.tokens)}, it keeps {list(kept)}")
            self.kept[ask.row] = [*ask.tokens, *drafts]
        return proposal

    def repair(self, repairs: Sequence[Repair]) -> None:
        """See `speculation.Proposer`."""
        for each in repairs:
            kept = self.kept.get(each.row)
            if kept is None:
                self.strange.append(f"{each.row} is repaired, it keeps nothing of it")
            elif each.confirmed == 0:
                del self.kept[each.row]
                self._laws.pop(each.row, None)
            else:
                self.num_repaired += len(kept) >= each.confirmed
                del kept[each.confirmed - 1 :]  # the added token is not computed yet
        self._proposer.repair(repairs)


def proposer_from(spec: Any, vocab_size: int) -> Keeping:
    """{"proposer": "lookup" | "knowing" | "drawing", "width": n}: see `models.build`."""
    if not isinstance(spec, Mapping) or set(spec) != {"proposer", "width"} or spec["proposer"] not in PROPOSERS:
        raise BadInput(f'speculation is {{"proposer": {" | ".join(PROPOSERS)}, "width": 1 or more}}, found {spec!r}')
    width = spec["width"]
    if type(width) is not int or width < 1:
        raise BadInput(f"the width of speculation is an integer of at least 1, found {width!r}")
    return Keeping(PROPOSERS[spec["proposer"]](vocab_size, width))


def _lookup(vocab_size: int, width: int) -> Proposer:
    del vocab_size  # it names what it has seen
    return PromptLookup(width)


PROPOSERS: dict[str, Callable[[int, int], Proposer]] = {"lookup": _lookup, "knowing": Knowing, "drawing": Drawing}
