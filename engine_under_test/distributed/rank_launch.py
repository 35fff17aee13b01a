"""One plan that was sent to all ranks: what each answered, whether they agree, and what it came to.

Owns the answers. Never: who is heard, or what becomes of ranks that do not agree (`ranks.py`).
"""

from __future__ import annotations

from itertools import zip_longest
from typing import Protocol

import numpy as np
import numpy.typing as npt

from engine_under_test.distributed.rank_messages import Executed
from engine_under_test.errors import AssayError, ProtocolError, RankLost, RunnerError
from engine_under_test.types import Plan, StepResult

_COMPARED = ("plan_generation", "tokens", "told", "error", "to_blame", "distrusts", "collectives")  # of the answers to a plan


class Listening(Protocol):
    """The group, as whoever waits for a plan asks it to listen: see `Ranks`."""

    def look(self) -> None: ...
    def wait(self) -> None: ...


class RankLaunch:
    """One plan that was sent to all ranks."""

    def __init__(self, group: Listening, plan: Plan, sequence: int, now: float) -> None:
        self._group = group
        self.plan = plan
        self.sequence = sequence
        self.sent_s = now
        self.answers: dict[int, Executed] = {}
        self._error: AssayError | None = None
        self._result: StepResult | None = None

    @property
    def plan_id(self) -> int:
        return self.plan.plan_id

    @property
    def fence(self) -> RankLaunch:
        """See `runner.Launch`."""
        return self

    def has_passed(self) -> bool:
        """Every rank has answered, or none is left."""
        self._group.look()
        return self.is_over

    @property
    def is_over(self) -> bool:
        return self._result is not None or self._error is not None

    def result(self) -> StepResult:
        """See `runner.Launch`. Raises RankLost if the group broke."""
        while not self.is_over:
            self._group.wait()
        if self._error is not None:
            raise self._error
        assert self._result is not None  # or it would not be over
        return self._result

    def succeed(self) -> None:
        answer = self.answers[0]
        if answer.error:
            self._error = RunnerError(f"all ranks: {answer.error}", answer.to_blame, distrusts=answer.distrusts)
        else:
            self._result = StepResult(answer.plan_id, answer.plan_generation, answer.rows, answer.tokens, *answer.told)

    def fail(self, error: AssayError) -> None:
        self._error = error
        if isinstance(error, RankLost):
            error.rows[self.plan_id] = self.plan.num_rows

    @property
    def cells(self) -> npt.NDArray[np.uint64]:
        """[n, 2] as `FingerprintLaunch.cells`: the ranks' parts put together. Only with `RankConfig.shows_evidence`."""
        self.result()
        parts = [np.frombuffer(answer.cells, np.uint64) for answer in self.answers.values()]
        whole: npt.NDArray[np.uint64] = np.sum(parts, axis=0, dtype=np.uint64)
        return whole.reshape(-1, 2)

    @property
    def row_ends(self) -> tuple[int, ...]:
        """The end of each row in `cells`."""
        self.result()
        return self.answers[0].row_ends

    def logits_of(self, rank: int) -> npt.NDArray[np.float32]:
        """[rows that sample, vocabulary] as this rank computed them. Only with `RankConfig.shows_evidence`."""
        self.result()
        found = self.answers[rank].logits
        if found is None:
            raise ProtocolError("ranks answer with logits when they are asked to show evidence and have a language model")
        return np.frombuffer(found[1], np.float32).reshape(found[0])

    def disagreement(self) -> tuple[int, str] | None:
        """The first rank whose account of a step is not the plan's, or not that of most ranks, with both."""
        answers, rows = self.answers, self.plan.row_ids()
        for rank, answer in sorted(answers.items()):
            if answer.plan_id != self.plan_id or answer.rows != rows:
                return rank, f"executed plan {answer.plan_id} with rows {answer.rows} where plan {self.plan_id} was sent"
        accounts = [tuple(getattr(answers[rank], name) for name in _COMPARED) for rank in range(len(answers))]
        if all(each == accounts[0] for each in accounts):
            return None
        # The account of most ranks; with as many on either side, that of rank 0.
        usual = max(range(len(accounts)), key=lambda rank: accounts.count(accounts[rank]))
        rank = next(rank for rank, each in enumerate(accounts) if each != accounts[usual])
        name, one, two = next(
            (name, one, two) for name, one, two in zip(_COMPARED, accounts[usual], accounts[rank], strict=True) if one != two
        )
        if isinstance(one, tuple) and isinstance(two, tuple):
            one, two = next(pair for pair in zip_longest(one, two) if pair[0] != pair[1])
        return rank, f"disagrees with rank {usual} in {name} of plan {self.plan_id}: {two!r}, not {one!r}"
