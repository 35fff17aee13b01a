"""Speculative decoding as the engine sees it: who proposes drafts, who verifies them, and what both must say beforehand.

Owns: the words of the contract (`propose`, `verify`, `repair`) and the check of what a proposer hands over. Never: a law
(`verification.py`), a proposer (`proposers.py`, `draft_model.py`), KV blocks, or which drafts still fit in a step.

One step of a row: the proposer names up to `width` *drafts*, tokens for the positions behind the visible ones. The runner
computes them all at once, behind the row's last token, and so has the target's law at each of them and at one position more.
Verification keeps the longest beginning of the drafts that the law allows, and adds one token of its own: the *recovered* one
where it stopped, or the *bonus* behind the last. So a step emits 1 to width + 1 tokens, and their distribution is the
target's, whatever was proposed (Leviathan, Kalman, Matias, ICML 2023, arXiv 2211.17192; Chen et al. 2023, arXiv 2302.01318).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from engine_under_test.errors import ProtocolError
from engine_under_test.seams import Noise
from engine_under_test.types import RowId, SamplingParams

if TYPE_CHECKING:
    import torch

    from engine_under_test.sampling.verification import Verdicts


class Knowledge(StrEnum):
    """What a proposer says of the chance of its drafts. Verification is lossless only for the law of which they really came."""

    CERTAIN = "certain"  # each draft is a function of what stands before it: it came with probability 1
    FULL = "full"  # the probability of every token, as each draft was drawn from it (filters and temperature applied)


@dataclass(frozen=True, slots=True)
class Declaration:
    """What a proposer needs, said before anything is planned.

    ``max_drafts``: for one row and step. ``own_slots_per_token``: slots of KV that it keeps itself for every token of a choice,
    in a store of its own; they hold drafts too until `repair` (0: none).
    """

    name: str
    max_drafts: int
    knowledge: Knowledge
    own_slots_per_token: int = 0

    def temporary_slots(self, num_drafts: int) -> int:
        """Slots of the target's KV that a step with so many drafts writes and that nothing confirms before its verification
        (KV-6): one a draft. The last visible token's slot is confirmed in any case; the token added at the end has none yet."""
        return min(num_drafts, self.max_drafts)


class Ask(NamedTuple):
    """A row that would like drafts. ``tokens``: prompt and output so far, the last one not computed yet; the first
    ``prompt_len`` are the prompt's. ``width``: at most so many drafts."""

    row: RowId
    tokens: Sequence[int]
    params: SamplingParams
    width: int
    prompt_len: int


class Proposal(NamedTuple):
    """Drafts, ask by ask; a row may get none. ``probabilities`` [all drafts one after the other, vocabulary] with
    `Knowledge.FULL`, else None."""

    drafts: tuple[tuple[int, ...], ...]
    probabilities: torch.Tensor | npt.NDArray[np.float64] | None = None

    @property
    def widths(self) -> list[int]:
        """How many drafts each row got."""
        return list(map(len, self.drafts))


class Repair(NamedTuple):
    """What became of a row's drafts. ``confirmed``: how many tokens, prompt and output, stand behind this step and will not
    change any more, the added one among them; 0 if the choice is over or starts anew: nothing of it is kept."""

    row: RowId
    num_accepted: int
    confirmed: int


class Proposer(Protocol):
    """Names drafts. Whatever it remembers of a row it must be able to do without: a row may skip steps, and start anew."""

    @property
    def declaration(self) -> Declaration: ...

    def propose(self, asks: Sequence[Ask], noise: Noise) -> Proposal:
        """Up to `width` drafts for each ask. Draws only at purpose DRAFT and the position that a draft stands for."""

    def repair(self, repairs: Sequence[Repair]) -> None:
        """Takes back what the proposer keeps of positions at and behind ``confirmed``."""


class Speculation(Protocol):
    """The plug-in: a proposer, and the verification that goes with what it says of its drafts."""

    @property
    def declaration(self) -> Declaration: ...

    def propose(self, asks: Sequence[Ask], noise: Noise) -> Proposal:
        """See `Proposer`. Checked: ProtocolError for a proposal that its declaration does not allow."""

    def verify(self, asks: Sequence[Ask], proposal: Proposal, target: torch.Tensor, noise: Noise) -> Verdicts:
        """How many drafts of each ask are kept, and the token added. ``target``: processed probabilities, for each ask one row
        a draft and one more, ask by ask. Stays as it is."""

    def repair(self, repairs: Sequence[Repair]) -> None:
        """See `Proposer`."""


@dataclass(frozen=True, slots=True)
class Lossless:
    """The default plug-in: any proposer, verified by rejection sampling (see `verification.verify`)."""

    proposer: Proposer

    @property
    def declaration(self) -> Declaration:
        """See `Speculation`."""
        return self.proposer.declaration

    def propose(self, asks: Sequence[Ask], noise: Noise) -> Proposal:
        """See `Speculation`."""
        proposal = self.proposer.propose(asks, noise)
        check_proposal(self.declaration, asks, proposal)
        return proposal

    def verify(self, asks: Sequence[Ask], proposal: Proposal, target: torch.Tensor, noise: Noise) -> Verdicts:
        """See `Speculation`."""
        from engine_under_test.sampling.verification import rows_of, verify

        return verify(rows_of(asks, proposal, target), noise)

    def repair(self, repairs: Sequence[Repair]) -> None:
        """See `Speculation`."""
        self.proposer.repair(repairs)


def check_proposal(declaration: Declaration, asks: Sequence[Ask], proposal: Proposal) -> None:
    """ProtocolError for a proposal that does not fit its asks, or that says less of itself than was declared."""
    name = declaration.name
    if len(proposal.drafts) != len(asks):
        raise ProtocolError(
            f"a proposal has drafts for each of {len(asks)} rows, found {len(proposal.drafts)} from {name}; correct it"
        )
    for ask, drafts in zip(asks, proposal.drafts, strict=True):
        most = min(ask.width, declaration.max_drafts)
        if len(drafts) > most:
            raise ProtocolError(
                f"{name} may propose {most} drafts for {ask.row.request_id!r}, found {len(drafts)}; leave out the last ones"
            )
    known, num = proposal.probabilities, sum(proposal.widths)
    if declaration.knowledge is Knowledge.CERTAIN:
        if known is not None:
            raise ProtocolError(f"{name} declares certain drafts, found probabilities; declare full knowledge, or say none")
        return
    if known is None and num:
        raise ProtocolError(f"{name} declares full knowledge of its drafts, found no probabilities; return them")
    if known is not None and len(known) != num:
        raise ProtocolError(f"{name} has one row of probabilities for each of {num} drafts, found {len(known)}; correct it")
