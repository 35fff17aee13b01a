"""What befalls a rank's container from outside, and the evidence that it fell where it was meant to fall.

Owns the blows and the thread that deals one. A rank that is to be struck says so in its container's log when it stands at the
chosen phase; only then, and while it stands there, is its container struck. Never judges.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from chaos.rank_containers import ContainerRank
from chaos.rank_strikes import Blow, Strike
from engine_under_test.distributed.rank_config import Patience
from engine_under_test.distributed.ranks import Ranks

PATIENCE: Final = Patience(beat_s=0.1, silence_s=4.0, step_s=30.0)
# For who must not be lost to silence: TCP doubles its waits, so that 1.5 s away are up to 3.2 s silent; and a kernel that takes
# back the pages of a program before it kills it lets that program stand still for seconds.
PATIENT: Final = Patience(beat_s=0.1, silence_s=12.0, step_s=30.0)
_THERE_S = 30.0  # in which a rank reaches a phase, on a machine under load
_MOMENT_S = 1.5


@dataclass(frozen=True, slots=True)
class ContainerBlow:
    """``inside``: what the rank itself does at the phase. ``befalls``: what its container then gets. ``noticed_as``: words of
    the loss that must follow; "" if it need not be lost, and ``heals`` if it must not."""

    name: str
    inside: Blow
    befalls: Callable[[ContainerRank], None] | None = None
    noticed_as: str = ""
    heals: bool = False

    @property
    def patience(self) -> Patience:
        return PATIENT if self.heals or self.befalls is None else PATIENCE


def _paused_for(seconds: float, rank: ContainerRank) -> None:
    rank.pause()
    time.sleep(seconds)
    rank.resume()


def _away_for(seconds: float, rank: ContainerRank) -> None:
    rank.disconnect()
    time.sleep(seconds)
    rank.reconnect()


BLOWS: Final = (
    ContainerBlow("container killed", Blow.HOLD, ContainerRank.kill, "exited with code 137"),
    ContainerBlow("container paused", Blow.HOLD, ContainerRank.pause, "was silent for"),
    ContainerBlow("container off its network", Blow.HOLD, ContainerRank.disconnect, "was silent for"),
    ContainerBlow("container at its memory limit", Blow.EXHAUST, None, "was killed at its memory limit"),
    ContainerBlow(
        "container paused for a moment", Blow.REST, lambda rank: _paused_for(_MOMENT_S, rank), heals=True
    ),
    ContainerBlow(
        "container off its network for a moment, and back", Blow.REST, lambda rank: _away_for(_MOMENT_S, rank), heals=True
    ),
    ContainerBlow(
        "container back on its network when it counts as lost", Blow.REST, lambda rank: _away_for(PATIENCE.silence_s, rank)
    ),
)  # fmt: skip


class Striker:
    """Deals the blow once, from a thread of its own. ``facts``: what it saw and did, in words."""

    def __init__(self, blow: ContainerBlow) -> None:
        self._blow = blow
        self._thread: threading.Thread | None = None
        self.has_fallen = blow.befalls is None  # then the rank deals it to itself
        self.facts: tuple[str, ...] = () if blow.befalls else ("nothing befalls the container but its own limit",)

    def __call__(self, strike: Strike, group: Ranks) -> None:
        """See `rank_kills.Struck`."""
        rank = group.processes[strike.rank]
        assert isinstance(rank, ContainerRank)  # its launcher starts nothing else
        if self._blow.befalls is not None:
            self._thread = threading.Thread(target=self._deal, args=(strike, rank), daemon=True)
            self._thread.start()

    def join(self) -> None:
        """Waits until it has dealt all of the blow."""
        if self._thread is not None:
            self._thread.join(_THERE_S + PATIENCE.silence_s)

    def _deal(self, strike: Strike, rank: ContainerRank) -> None:
        assert self._blow.befalls is not None  # or there is no thread
        if not rank.has_said(strike.words, _THERE_S):
            self.facts += (f"{rank.name} never stood {strike.phase} of step {strike.sequence}",)
            return
        self.facts += (f"{rank.name} said that it stands {strike.phase} of step {strike.sequence}",)
        try:
            self._blow.befalls(rank)
        except Exception as error:  # it is told: the engine of the containers has its own reasons
            self.facts += (f"{self._blow.name}: {type(error).__name__}: {error}",)
            # Whoever counts as lost is removed before it comes back, which is not for it to say.
            self.has_fallen = not self._blow.heals and not self._blow.noticed_as
            return
        self.has_fallen = True
        self.facts += (f"{self._blow.name}: done",)
