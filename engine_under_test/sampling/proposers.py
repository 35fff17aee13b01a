"""Proposers that need no model: prompt lookup, and one that proposes what a test tells it to.

Owns: which tokens they name. Never: a law, noise, or whether a draft stands. Both propose with certainty: a draft is a function
of what stands before it, so verification takes its probability as 1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from engine_under_test.errors import ConfigError
from engine_under_test.sampling.speculation import Ask, Declaration, Knowledge, Proposal, Repair
from engine_under_test.seams import Noise
from engine_under_test.types import RowId


@dataclass(frozen=True, slots=True)
class PromptLookup:
    """What followed the last time that the row's last tokens stood there (prompt lookup decoding: Saxena 2023).

    The longest ending of at most ``most`` and at least ``least`` tokens that stands earlier in the row, at its latest place,
    names what follows. It remembers nothing.
    """

    max_drafts: int = 4
    most: int = 4
    least: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.least <= self.most or self.max_drafts < 1:
            raise ConfigError(
                f"prompt lookup compares 1 <= least <= most tokens and proposes at least 1, found least {self.least}, most "
                f"{self.most}, max_drafts {self.max_drafts}; correct them"
            )

    @property
    def declaration(self) -> Declaration:
        """See `speculation.Proposer`."""
        return Declaration("prompt lookup", self.max_drafts, Knowledge.CERTAIN)

    def propose(self, asks: Sequence[Ask], noise: Noise) -> Proposal:
        """See `speculation.Proposer`."""
        del noise  # certain drafts draw none
        return Proposal(tuple(self._of(tuple(ask.tokens), min(ask.width, self.max_drafts)) for ask in asks))

    def repair(self, repairs: Sequence[Repair]) -> None:
        """Nothing is kept."""

    def _of(self, tokens: tuple[int, ...], width: int) -> tuple[int, ...]:
        for size in range(min(self.most, len(tokens) - 1), self.least - 1, -1):
            found = _last_place(tokens, size)
            if found is not None:
                return tokens[found + size : found + size + max(width, 0)]
        return ()


def _last_place(tokens: tuple[int, ...], size: int) -> int | None:
    """Where the last `size` tokens stand for the last time before they end the row."""
    ending = tokens[-size:]
    for begin in range(len(tokens) - size - 1, -1, -1):
        if tokens[begin : begin + size] == ending:
            return begin
    return None


# The tokens that would come next behind those given, as many as asked for.
Truth = Callable[[Sequence[int], int], Sequence[int]]


@dataclass(slots=True)
class Scripted:
    """Proposes ``truth`` for as many drafts as the script says, then a token that is not the truth.

    ``counts`` are taken in turn by each row from its own beginning, the last one for ever: with a greedy target, and ``truth``
    being its continuation, they are the numbers of drafts that stand. ``repairs`` is what it was told, in order.
    """

    truth: Truth
    counts: Sequence[int]
    vocab_size: int
    max_drafts: int = 4
    repairs: list[Repair] = field(default_factory=list)
    _turns: dict[RowId, int] = field(default_factory=dict)

    @property
    def declaration(self) -> Declaration:
        """See `speculation.Proposer`."""
        return Declaration("scripted", self.max_drafts, Knowledge.CERTAIN)

    def propose(self, asks: Sequence[Ask], noise: Noise) -> Proposal:
        """See `speculation.Proposer`."""
        del noise  # certain drafts draw none
        return Proposal(tuple(map(self._of, asks)))

    def repair(self, repairs: Sequence[Repair]) -> None:
        """See `speculation.Proposer`."""
        self.repairs += repairs
        for each in repairs:
            if each.confirmed == 0:
                self._turns.pop(each.row, None)

    def _of(self, ask: Ask) -> tuple[int, ...]:
        turn = self._turns.get(ask.row, 0)
        self._turns[ask.row] = turn + 1
        width = min(ask.width, self.max_drafts)
        true = list(self.truth(ask.tokens, width))[:width]
        count = self.counts[min(turn, len(self.counts) - 1)]
        return tuple(token if place < count else (token + 1) % self.vocab_size for place, token in enumerate(true))
