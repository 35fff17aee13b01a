"""What must hold between a store and peers that are broken, hostile, slow or gone (AS-4, DI-3, DI-5).

Owns the sentences and the value that they judge: what became of one peer, seen from outside. Whoever runs peers fills it in; a
column that it can not see stands at its default. Knows no socket, no store and no engine.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from properties.invariants.predicate import violation
from properties.verdict import Violation


@dataclass(frozen=True, slots=True)
class PeerMoment:
    """``title``: the peer, in words. ``fault``: what it did that costs it its connection, "" if nothing. ``is_ended``: the
    other side ended the connection. ``has_token`` and ``is_welcomed``: whether it proved that it has the token, and was let
    in. ``spoiled``: the field of which a bit was flipped on the way. ``relieved``: it left unread what was due to it and has
    read it since; ``is_answered``: what it said then was answered. ``trouble``: of an engine of good will beside it, "" if it
    is served. ``tries``: when an engine tried to connect while nobody said a word, from its first try on; the wait between two
    begins at ``least_wait_s``, doubles, and is ``most_wait_s`` at most. ``slack_s``: how exactly that is seen. ``asked``: what
    of a declared limit it asked for, "" if nothing; ``is_due``: up to the limit, and by whom it is for; ``is_given``: it was.
    Of a new connection: ``told_late``, messages that had come over the one before it, and ``is_congested_anew``, before a word
    was sent.
    """

    title: str
    fault: str = ""
    is_ended: bool = False
    has_token: bool = True
    is_welcomed: bool = False
    spoiled: str = ""
    relieved: bool = False
    is_answered: bool = False
    trouble: str = ""
    tries: tuple[float, ...] = ()
    least_wait_s: float = 0.0
    most_wait_s: float = 0.0
    slack_s: float = 0.0
    told_late: int = 0
    is_congested_anew: bool = False
    asked: str = ""
    is_due: bool = False
    is_given: bool = False


@dataclass(frozen=True, slots=True)
class PeerSentence:
    """A named positive sentence over what became of one peer."""

    identifier: str
    check: Callable[[PeerMoment], Violation | None]

    @property
    def sentence(self) -> str:
        return self.check.__name__.replace("_", " ")


def nobody_is_welcomed_without_the_token(moment: PeerMoment) -> Violation | None:
    """DI-3: what is stored is checked and committed by engines that have the token, and by nobody else."""
    if moment.is_welcomed and not moment.has_token:
        return violation("DI-3", moment.title, "welcomed", "its connection ended: it has not proved that it has the token")
    return None


def spoiled_frames_end_their_connection(moment: PeerMoment) -> Violation | None:
    """DI-3: a frame of which a bit was flipped has not arrived whole: nothing of it, and nothing behind it, is believed."""
    if moment.spoiled and not moment.is_ended:
        return violation("DI-3", moment.title, f"believed, though a bit of its {moment.spoiled} was flipped", "an end")
    return None


def faults_cost_their_connection(moment: PeerMoment) -> Violation | None:
    """DI-5: a peer that does what it may not do, or takes too long over it, holds nothing any more."""
    if moment.fault and not moment.is_ended:
        return violation("DI-5", moment.title, "its connection goes on", f"an end: {moment.fault}")
    return None


def engines_of_good_will_are_served(moment: PeerMoment) -> Violation | None:
    """DI-5: whatever a peer does, it slows or ends its own transfers only."""
    if moment.trouble:
        return violation("DI-5", f"an engine beside {moment.title}", moment.trouble, "served as if it were alone")
    return None


def whoever_reads_again_is_read_from_again(moment: PeerMoment) -> Violation | None:
    """DI-5: credit that was used up comes back: a peer that was slow and is not any more is served like any other."""
    if moment.relieved and not moment.is_answered:
        return violation("DI-5", moment.title, "not read from any more", "an answer: it has read all that was due to it")
    return None


def tries_to_connect_become_rarer(moment: PeerMoment) -> Violation | None:
    """DI-5: a store that does not answer is not hammered: each wait is twice the one before, up to the stated bound."""
    wait = moment.least_wait_s
    for number, (before, after) in enumerate(pairwise(moment.tries), start=2):
        if after - before < wait - moment.slack_s:
            return violation("DI-5", f"try {number} of {moment.title}", f"{after - before:.3f} s", f"{wait:.3f} s at least")
        wait = min(wait * 2, moment.most_wait_s)
    return None


def tries_to_connect_never_end(moment: PeerMoment) -> Violation | None:
    """DI-5: a store that is back is found again within the stated bound."""
    for number, (before, after) in enumerate(pairwise(moment.tries), start=2):
        if after - before > moment.most_wait_s + moment.slack_s:
            found = f"{after - before:.3f} s"
            return violation("DI-5", f"try {number} of {moment.title}", found, f"{moment.most_wait_s:.3f} s at most")
    return None


def declared_limits_are_given_and_no_more(moment: PeerMoment) -> Violation | None:
    """DI-5: what a store declares is given up to its limit, and nothing beyond it, so that its memory is bounded."""
    if moment.asked and moment.is_given is not moment.is_due:
        words = ("refused", "given")
        return violation("DI-5", f"{moment.asked}, to {moment.title}", words[moment.is_given], words[moment.is_due])
    return None


def nothing_comes_late(moment: PeerMoment) -> Violation | None:
    """AS-4: what a connection brought ends with it: its transfers have other numbers, or none, in the next one."""
    if moment.told_late:
        return violation("AS-4", moment.title, f"{moment.told_late} messages of the one before it", "what comes over it alone")
    return None


def new_connections_are_not_congested(moment: PeerMoment) -> Violation | None:
    """DI-5: what was not sent over a connection that is lost waits no more, and keeps nothing from going over another."""
    if moment.is_congested_anew:
        return violation("DI-5", moment.title, "congested before a word was sent", "room for what is to be sent")
    return None


PEER_SENTENCES: Final = (
    PeerSentence("DI-3", nobody_is_welcomed_without_the_token),
    PeerSentence("DI-3", spoiled_frames_end_their_connection),
    PeerSentence("DI-5", faults_cost_their_connection),
    PeerSentence("DI-5", engines_of_good_will_are_served),
    PeerSentence("DI-5", whoever_reads_again_is_read_from_again),
    PeerSentence("DI-5", declared_limits_are_given_and_no_more),
    PeerSentence("DI-5", tries_to_connect_become_rarer),
    PeerSentence("DI-5", tries_to_connect_never_end),
    PeerSentence("AS-4", nothing_comes_late),
    PeerSentence("DI-5", new_connections_are_not_congested),
)


def first_violation_of(moment: PeerMoment) -> Violation | None:
    """The first sentence that does not hold."""
    return next((found for each in PEER_SENTENCES if (found := each.check(moment)) is not None), None)
