"""The one table of the protocol's states: who may say what when. Owns legality; moves no bytes and keeps no time.

Both ends of a conversation read the same table, each from its own side: `OURS` is what this end sends, `THEIRS` what it
receives. What the table does not list is illegal: sending it is a defect of ours, receiving it costs the peer its connection.

    session     NEW ─HELLO→ GREETED ─CHALLENGE→ CHALLENGED ─PROOF→ PROVEN ─WELCOME→ OPEN ─BYE→ CLOSED     (FAULT: CLOSED)
    load        IDLE ─OPEN→ ASKED ─OFFER→ OFFERED ─CREDIT→ MOVING ─END→ WHOLE ─ACK→ CLOSED                (REFUSE: CLOSED)
    store       IDLE ─OPEN→ ASKED ─CREDIT→ MOVING ─END→ WHOLE ─ACK→ CLOSED                                (REFUSE: CLOSED)
    abort       any live state ─ABORT→ ABORTING ─ABORTED→ CLOSED, by either end; every ABORT is answered by one ABORTED

A transfer's identifier is idempotent: an OPEN that is said twice on a connection counts once, and one of a store that was
complete on an earlier connection is acknowledged at once. What arrives for a closed transfer is late, not illegal. A CREDIT
is cumulative (all bytes granted since the transfer began), so that saying it twice grants once.
An end that aborts and gets no answer closes the connection: only then can nothing arrive any more.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, IntEnum
from typing import Final

from engine_under_test.errors import ProtocolError

VERSION: Final = 1


class Kind(IntEnum):
    """What a message is; the number is on the wire."""

    HELLO = 1
    CHALLENGE = 2
    PROOF = 3
    WELCOME = 4
    BYE = 5
    FAULT = 6
    OPEN = 16
    OFFER = 17
    REFUSE = 18
    CREDIT = 19
    BLOCK = 20
    END = 21
    ACK = 22
    ABORT = 23
    ABORTED = 24


class State(Enum):
    """Of a session (the first six, CLOSED) or of a transfer (the others, CLOSED), as one end knows it."""

    NEW = "new"
    GREETED = "greeted"
    CHALLENGED = "challenged"
    PROVEN = "proven"
    OPEN = "open"
    IDLE = "idle"
    ASKED = "asked"
    OFFERED = "offered"  # the source is pinned under a lease
    MOVING = "moving"
    WHOLE = "whole"  # the source has sent everything and is pinned until the acknowledgement
    ABORTING = "aborting"  # the other end may still send
    CLOSED = "closed"


class Way(Enum):
    OURS = "ours"
    THEIRS = "theirs"


class Machine(Enum):
    """Which conversation, seen from which end. A sink takes blocks, a source gives them; the client opens."""

    CLIENT_SESSION = "client session"
    STORE_SESSION = "store session"
    LOAD_SINK = "load, client"
    LOAD_SOURCE = "load, store"
    STORE_SOURCE = "store, client"
    STORE_SINK = "store, store"


_FLOW: Final[Mapping[str, tuple[tuple[State, str, Kind, State], ...]]] = {
    "session": (
        (State.NEW, "client", Kind.HELLO, State.GREETED),
        (State.GREETED, "store", Kind.CHALLENGE, State.CHALLENGED),
        (State.CHALLENGED, "client", Kind.PROOF, State.PROVEN),
        (State.PROVEN, "store", Kind.WELCOME, State.OPEN),
        (State.OPEN, "client", Kind.BYE, State.CLOSED),
        (State.NEW, "store", Kind.FAULT, State.CLOSED),
        (State.GREETED, "store", Kind.FAULT, State.CLOSED),
        (State.CHALLENGED, "store", Kind.FAULT, State.CLOSED),
        (State.PROVEN, "store", Kind.FAULT, State.CLOSED),
        (State.OPEN, "store", Kind.FAULT, State.CLOSED),
    ),
    "load": (
        (State.IDLE, "client", Kind.OPEN, State.ASKED),
        (State.ASKED, "client", Kind.OPEN, State.ASKED),  # said twice
        (State.OFFERED, "client", Kind.OPEN, State.OFFERED),
        (State.MOVING, "client", Kind.OPEN, State.MOVING),
        (State.WHOLE, "client", Kind.OPEN, State.WHOLE),
        (State.ABORTING, "client", Kind.OPEN, State.ABORTING),
        (State.CLOSED, "client", Kind.OPEN, State.CLOSED),  # said twice and late: it was answered
        (State.ASKED, "store", Kind.REFUSE, State.CLOSED),
        (State.ASKED, "store", Kind.OFFER, State.OFFERED),
        (State.OFFERED, "store", Kind.OFFER, State.OFFERED),  # said twice, here and below
        (State.MOVING, "store", Kind.OFFER, State.MOVING),
        (State.WHOLE, "store", Kind.OFFER, State.WHOLE),
        (State.OFFERED, "client", Kind.CREDIT, State.MOVING),
        (State.MOVING, "client", Kind.CREDIT, State.MOVING),
        (State.WHOLE, "client", Kind.CREDIT, State.WHOLE),  # granted before the end was seen
        (State.MOVING, "store", Kind.BLOCK, State.MOVING),
        (State.WHOLE, "store", Kind.BLOCK, State.WHOLE),
        (State.MOVING, "store", Kind.END, State.WHOLE),
        (State.WHOLE, "store", Kind.END, State.WHOLE),
        (State.WHOLE, "client", Kind.ACK, State.CLOSED),
    ),
    "store": (
        (State.IDLE, "client", Kind.OPEN, State.ASKED),
        (State.ASKED, "client", Kind.OPEN, State.ASKED),
        (State.MOVING, "client", Kind.OPEN, State.MOVING),
        (State.WHOLE, "client", Kind.OPEN, State.WHOLE),
        (State.ABORTING, "client", Kind.OPEN, State.ABORTING),
        (State.CLOSED, "client", Kind.OPEN, State.CLOSED),
        (State.ASKED, "store", Kind.REFUSE, State.CLOSED),
        (State.ASKED, "store", Kind.ACK, State.CLOSED),  # complete since an earlier connection
        (State.ASKED, "store", Kind.CREDIT, State.MOVING),
        (State.MOVING, "store", Kind.CREDIT, State.MOVING),
        (State.WHOLE, "store", Kind.CREDIT, State.WHOLE),
        (State.MOVING, "client", Kind.BLOCK, State.MOVING),
        (State.WHOLE, "client", Kind.BLOCK, State.WHOLE),
        (State.MOVING, "client", Kind.END, State.WHOLE),
        (State.WHOLE, "client", Kind.END, State.WHOLE),
        (State.WHOLE, "store", Kind.ACK, State.CLOSED),
    ),
}
"""(state, who says it, what, next state): the happy path and what may be said twice."""

_LIVE: Final = {
    "load": (State.ASKED, State.OFFERED, State.MOVING, State.WHOLE),
    "store": (State.ASKED, State.MOVING, State.WHOLE),
}
_ANSWERS: Final = (Kind.OFFER, Kind.REFUSE, Kind.CREDIT, Kind.BLOCK, Kind.END, Kind.ACK)


def _rows(flow: str, side: str) -> dict[tuple[State, Way, Kind], State]:
    """The flow as one side sees it, with the rules of abort and of what comes late."""
    rows = {(state, Way.OURS if who == side else Way.THEIRS, kind): then for state, who, kind, then in _FLOW[flow]}
    if flow == "session":
        return rows
    spoken = {kind for _, who, kind, _ in _FLOW[flow] if who != side}
    for state in _LIVE[flow]:
        rows[state, Way.OURS, Kind.ABORT] = State.ABORTING
        rows[state, Way.THEIRS, Kind.ABORT] = State.CLOSED
    rows[State.ABORTING, Way.THEIRS, Kind.ABORT] = State.ABORTING  # both aborted at once: each answers the other
    rows[State.ABORTING, Way.THEIRS, Kind.ABORTED] = State.CLOSED
    rows[State.CLOSED, Way.THEIRS, Kind.ABORT] = State.CLOSED
    rows[State.CLOSED, Way.THEIRS, Kind.ABORTED] = State.CLOSED
    rows[State.ABORTING, Way.OURS, Kind.ABORTED] = State.ABORTING
    rows[State.CLOSED, Way.OURS, Kind.ABORTED] = State.CLOSED
    for kind in _ANSWERS:  # sent before the other end knew
        if kind in spoken:
            rows[State.ABORTING, Way.THEIRS, kind] = State.CLOSED if kind in (Kind.REFUSE, Kind.ACK) else State.ABORTING
            rows[State.CLOSED, Way.THEIRS, kind] = State.CLOSED
    return rows


TABLE: Final[Mapping[Machine, Mapping[tuple[State, Way, Kind], State]]] = {
    Machine.CLIENT_SESSION: _rows("session", "client"),
    Machine.STORE_SESSION: _rows("session", "store"),
    Machine.LOAD_SINK: _rows("load", "client"),
    Machine.LOAD_SOURCE: _rows("load", "store"),
    Machine.STORE_SOURCE: _rows("store", "client"),
    Machine.STORE_SINK: _rows("store", "store"),
}
SESSION_STATES: Final = (State.NEW, State.GREETED, State.CHALLENGED, State.PROVEN, State.OPEN, State.CLOSED)
TRANSFER_STATES: Final = tuple(state for state in State if state not in SESSION_STATES or state is State.CLOSED)
SESSION_KINDS: Final = frozenset(kind for kind in Kind if kind < Kind.OPEN)


def following(machine: Machine, state: State, way: Way, kind: Kind) -> State:
    """The state behind a message. Raises ProtocolError if the table does not allow it."""
    then = TABLE[machine].get((state, way, kind))
    if then is None:
        said = "sent" if way is Way.OURS else "received"
        raise ProtocolError(
            f"{kind.name} may not be {said} by a {machine.value} that is {state.value}; "
            f"there the protocol allows {_allowed(machine, state, way)}"
        )
    return then


def _allowed(machine: Machine, state: State, way: Way) -> str:
    kinds = [kind.name for (at, said, kind) in TABLE[machine] if at is state and said is way]
    return ", ".join(sorted(kinds)) or "nothing"
