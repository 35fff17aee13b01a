"""What a nemesis of connections is: how it strikes a real lab, how it is taken back, what shows that it touched anything."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from chaos.connector_account import Window
from chaos.faults import TOXICS, ConnectionFault, Fault

if TYPE_CHECKING:
    from chaos.connector_lab import Lab
    from chaos.proxies import Stream

Undo = Callable[[], object]


@dataclass(frozen=True, slots=True)
class ConnectionNemesis:
    """One kind of fault on connections. The words become docs/faults.md.

    ``touched``: from what was seen behind the strike, how often it did what it is for; ``evidence`` names that. ``words``: the
    strike in a person's words. The others are those of `Nemesis`.
    """

    kind: ConnectionFault
    seam: str
    heals: str
    observed: str
    watched_by: tuple[str, ...]
    evidence: str
    words: Callable[[Fault], str]
    strike: Callable[[Fault, Lab], Undo]
    touched: Callable[[Fault, Window], int]
    modes: tuple[str, ...] = ("process",)


def stream_of(fault: Fault) -> Stream:
    """Which bytes a toxic works on."""
    from chaos.proxies import Stream  # the library of Toxiproxy is an extra

    return Stream.UPSTREAM if fault.on else Stream.DOWNSTREAM


def is_of_one_link(fault: Fault) -> bool:
    """Whether it strikes what lies between the first engine and the store, and nobody else."""
    return fault.k >= 3 and fault.kind in (*TOXICS, ConnectionFault.PROXY_DOWN) and fault.kind is not ConnectionFault.SLOW_CLOSE


def link_of(fault: Fault) -> str:
    return " of engine 0" if is_of_one_link(fault) else ""


def way_of(fault: Fault) -> str:
    return "upstream" if fault.on else "downstream"


def of_strength(fault: Fault, *choices: int) -> int:
    """The attribute that the number of the fault stands for."""
    return choices[fault.k % len(choices)]
