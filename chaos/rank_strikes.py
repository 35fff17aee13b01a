"""Blows to a rank, dealt inside its own process at a chosen phase of a chosen step. They are real: nothing is simulated.

Owns what each blow does. `strike` is the function that `RankConfig.phases` names; its argument is the strikes as JSON. Never
judges, and never runs in the driver.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from engine_under_test.distributed.rank_messages import PhaseReached, RankPhase

STRIKE: Final = "chaos.rank_strikes:strike"
_FOREVER_S = 3600.0
_REST_S = 6.0
_PIECE_BYTES, _MOST_BYTES = 1 << 22, 1 << 33  # far above any limit that a container of this suite has


class Blow(StrEnum):
    """What happens to the rank."""

    KILL = "kill"
    FREEZE = "freeze"
    RAISE = "raise"
    CUT = "cut"
    PART = "part"
    STALL = "stall"
    EXHAUST = "exhaust"
    HOLD = "hold"
    REST = "rest"


IN_CONTAINERS: Final = (
    Blow.EXHAUST,
    Blow.HOLD,
    Blow.REST,
)  # of use only where something bounds the memory, or strikes from outside

MEANINGS: Final = {
    Blow.KILL: "SIGKILL, as the kernel deals it when memory is short",
    Blow.FREEZE: "SIGSTOP: it is there, holds its connections, and does nothing any more",
    Blow.RAISE: "an exception of its own, while its peers wait for it",
    Blow.CUT: "its connection to the driver is gone; its peers still reach it",
    Blow.PART: "its connections to the other ranks are gone; the driver still reaches it",
    Blow.STALL: "the thread that computes stops for good, while its beats go on",
    Blow.EXHAUST: "it takes memory until the limit of its container ends it",
    Blow.HOLD: "it waits there for what befalls its container: killed, paused, or taken off its network",
    Blow.REST: "it waits there for some seconds, in which its container is paused or off its network and back, then goes on",
}

NOTICED: Final = {
    Blow.KILL: "at once: its connection ends",
    Blow.FREEZE: "after `Patience.silence_s` without a beat",
    Blow.RAISE: "at once: its last words",
    Blow.CUT: "at once: its connection ends; it ends itself, since nobody is there to hear it",
    Blow.PART: "at once: a collective fails",
    Blow.STALL: "after `Patience.step_s` without an answer",
    Blow.EXHAUST: "at once: its connection ends",
    Blow.HOLD: "killed: at once; paused, or off its network: after `Patience.silence_s` without a beat",
    Blow.REST: "not at all if it is back in time; else after `Patience.silence_s` without a beat",
}


@dataclass(frozen=True, slots=True)
class Strike:
    """One blow, when `rank` of `generation` reaches `phase` of step `sequence` (0 while it joins)."""

    blow: Blow
    phase: RankPhase
    rank: int
    sequence: int
    generation: int = 1

    @property
    def words(self) -> str:
        """As it is printed."""
        return f"{self.blow} {self.phase} of step {self.sequence}"


def to_argument(strikes: Iterable[Strike]) -> str:
    """What `RankConfig.phases_argument` carries to the ranks."""
    return json.dumps([asdict(each) for each in strikes])


def strike(reached: PhaseReached) -> None:
    """Deals the blow that is due here, if there is one."""
    here = (reached.phase, reached.rank, reached.sequence, reached.generation)
    for each in json.loads(reached.argument or "[]"):
        if (each["phase"], each["rank"], each["sequence"], each["generation"]) == here:
            told = Strike(**{**each, "blow": Blow(each["blow"]), "phase": RankPhase(each["phase"])})
            _deal(told, reached.link)


def _deal(told: Strike, link: int) -> None:
    blow = told.blow
    if blow is Blow.KILL:
        os.kill(os.getpid(), signal.SIGKILL)
    elif blow is Blow.FREEZE:
        os.kill(os.getpid(), signal.SIGSTOP)
    elif blow is Blow.RAISE:
        raise ZeroDivisionError("an exception of this rank alone")
    elif blow is Blow.CUT:
        _shut(link)
    elif blow is Blow.PART:
        for entry in Path("/proc/self/fd").iterdir():
            if _is_tcp(descriptor := int(entry.name)):
                _shut(descriptor)
    elif blow is Blow.EXHAUST:
        _taken = [b"x" * _PIECE_BYTES for _ in range(_MOST_BYTES // _PIECE_BYTES)]
    else:
        sys.stderr.write(f"{told.words}\n")  # whoever strikes from outside reads it: the rank stands there now
        sys.stderr.flush()
        time.sleep(_FOREVER_S if blow in (Blow.HOLD, Blow.STALL) else _REST_S)


def _is_tcp(descriptor: int) -> bool:
    try:
        with socket.socket(fileno=os.dup(descriptor)) as end:
            return (
                end.family in (socket.AF_INET, socket.AF_INET6) and end.type == socket.SOCK_STREAM and bool(end.getpeername())
            )
    except OSError:
        return False


def _shut(descriptor: int) -> None:
    with socket.socket(fileno=os.dup(descriptor)) as end:
        end.shutdown(socket.SHUT_RDWR)
