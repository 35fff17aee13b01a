"""An engine that outlives its ranks: when a rank is lost, the group and the engine begin a new generation.

Owns what becomes of requests then. Either policy leaves each of them with one ending:

- `CONTINUE`: every live request begins again with the tokens that it has, and goes on as if nothing had happened. If ranks are
  lost several times in a row without one plan getting through, it is taken for the fault of those plans: as `END`.
- `END`: requests whose rows were in flight end with an error that names the rank; the others go on.

If the group does not come up any more it is closed, and every request that is left ends with an error. Never: how a rank
is found lost (`ranks.py`).
"""

from __future__ import annotations

from collections.abc import Collection
from enum import StrEnum
from typing import Protocol

from engine_under_test.errors import ConfigError, RankLost
from engine_under_test.events import Counters
from engine_under_test.seams import RankGroup


class Engine(Protocol):
    """The verbs of `engine.Engine` that are needed here."""

    @property
    def counters(self) -> Counters: ...

    @property
    def plans_in_flight(self) -> tuple[int, ...]: ...

    def step(self) -> None: ...

    def restart(self) -> None: ...

    def abandon(self, plan_id: int, reason: str, to_blame: Collection[int] = ()) -> bool: ...


class Policy(StrEnum):
    """What becomes of requests in flight when a rank is lost."""

    CONTINUE = "continue"
    END = "end"


class RankSupervisor:
    """Steps an engine whose runner is the group. ``max_losses``: in a row without a commit, before requests in flight end;
    ``max_starts``: how often the group may fail to come up before it is closed."""

    def __init__(
        self,
        engine: Engine,
        group: RankGroup,
        policy: Policy = Policy.CONTINUE,
        *,
        max_losses: int = 3,
        max_starts: int = 3,
    ) -> None:
        for name, value in (("max_losses", max_losses), ("max_starts", max_starts)):
            if type(value) is not int or value < 1:
                raise ConfigError(f"{name} must be an integer of at least 1, found {value!r}; correct it")
        self._engine = engine
        self._group = group
        self._policy = policy
        self._max_losses = max_losses
        self._max_starts = max_starts
        self._committed = 0  # the engine's count when a rank was lost last
        self._losses = 0  # since then in a row
        self.num_restarts = 0

    def step(self) -> None:
        """One step of the engine, or what is done in place of one when a rank is lost."""
        try:
            self._engine.step()
        except RankLost as lost:
            self._recover(lost)

    def _recover(self, lost: RankLost) -> None:
        engine = self._engine
        self._losses = self._losses + 1 if engine.counters.committed == self._committed else 1
        self._committed = engine.counters.committed
        if self._policy is Policy.END or self._losses >= self._max_losses:
            self._end_in_flight(lost)
            self._losses = 0
        self._restart_group()
        engine.restart()

    def _end_in_flight(self, lost: RankLost) -> None:
        """Newest first, since abandoning a plan loses every later one as well."""
        engine = self._engine
        for plan_id in reversed(engine.plans_in_flight):
            engine.abandon(plan_id, str(lost), range(lost.rows.get(plan_id, 0)))

    def _restart_group(self) -> None:
        for attempt in range(self._max_starts):
            try:
                self._group.restart()
            except RankLost:
                if attempt + 1 == self._max_starts:
                    self._group.close()
            else:
                self.num_restarts += 1
                return
