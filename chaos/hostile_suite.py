"""The suite `hostile-peers`: a real KV store over sockets and, beside an engine of good will, a few peers of every kind that
are broken, hostile, slow or gone; and an engine before stores that are.

Owns sizes, floors and what became of each peer, as `PeerMoment`. The kinds stand in `hostile_kinds.py` and `broken_stores.py`,
the flipped bits in `spoiling_wire.py`, what must hold in `properties/invariants/peers.py`. The store's clock stands still until
it is moved, so that 40 seconds take none; sockets are real, so that there are no digests and nothing to shrink.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from typing import Final

from chaos.broken_stores import KINDS as BROKEN_STORES
from chaos.broken_stores import before_broken_stores
from chaos.good_engine import GoodEngine
from chaos.hostile_kinds import KINDS, Kind, Peer, drip, no_proof, no_token, replayed_session, wrong_token
from chaos.hostile_limits import (
    CONFIGURATIONS,
    GREETING_BYTES,
    GUESTS,
    STORED,
    Limit,
    begin_message,
    congest,
    hello,
    is_configured,
)
from chaos.lost_connections import behind_lost_connections
from chaos.real_runs import failure_of
from chaos.spoiling_wire import Field, Spoil, SpoilingWire, Way
from chaos.store_in_thread import StoreInThread
from chaos.tries import SLACK_S, when_hung_up, when_refused, when_unanswered
from engine_under_test.clock import SystemClock
from engine_under_test.distributed import messages as m
from engine_under_test.distributed import protocol
from engine_under_test.distributed.frames import MAGIC
from engine_under_test.distributed.kv_store import KvStore
from engine_under_test.distributed.store_pool import StoredBlock
from properties.invariants.peers import PEER_SENTENCES, PeerMoment, first_violation_of
from properties.invariants.transfers import TRANSFER_SENTENCES, Shelf, TransferMoment, first_violation
from properties.kv_world import HandClock
from properties.suite import CheckResult, Profile, SuiteContext
from properties.sums import Sums
from properties.verdict import Violation

SUITE_ID = "hostile-peers"
_EACH: Final = {Profile.QUICK: 1, Profile.PR: 4, Profile.NIGHTLY: 60}  # of each kind
_STRANGERS: Final = (wrong_token, no_token, no_proof, replayed_session)
_PATIENCE_S: Final = 10.0  # for what happens at once; waited out only where something is wrong
_SPOILED: Final = {
    Way.TO_STORE: ("HELLO", "PROOF", "OPEN", "BLOCK", "END", "CREDIT", "ACK"),
    Way.TO_ENGINE: ("CHALLENGE", "WELCOME", "CREDIT", "ACK", "OFFER", "BLOCK", "END"),
}
_FEW: Final = ("BLOCK",)  # in profile quick
_LONGEST_SILENCE_S: Final = 60.0
_MOST_HELD: Final = 8  # of each kind that takes its time, all of them together
_DOWN_S: Final = 40.0
_SPEAKS_S: Final = 3.0
_UNANSWERED_S: Final = 20.0
_LOADS: Final = 60  # of 32 KiB, which nobody reads: more than two socket buffers and the store's own


class _Found(Exception):
    """A sentence does not hold."""

    def __init__(self, violation: Violation) -> None:
        super().__init__(violation.sentence)
        self.violation = violation


class _Siege:
    """One store, one engine of good will, and whoever comes beside it."""

    def __init__(self, sums: Sums, seed: int) -> None:
        self.sums, self.seed = sums, seed
        self.running = StoreInThread()
        self.good = GoodEngine(self.running.address, SystemClock())
        self.contents = {key: self.good.content(number) for number, key in enumerate(self.good.keys)}

    def judge(self, moment: PeerMoment) -> None:
        for sentence in PEER_SENTENCES:
            self.sums.evaluations[sentence.identifier] += 1
        if (found := first_violation_of(moment)) is not None:
            raise _Found(found)

    def serve(self, beside: str) -> None:
        """The engine of good will goes round once; behind it the store shows what engines have stored, and nothing else."""
        trouble = ""
        try:
            self.good.go_round()
        except AssertionError as error:
            trouble = str(error) or "wrong bytes"
        self.judge(PeerMoment(beside, trouble=trouble))
        self.sums.reached["rounds of the good engine"] += 1
        visible = self.running.ask(_visible)
        self._judge_shelf()
        remote = {
            key: (block.data if block else b"", self.contents.get(key, b"of no engine")) for key, block in visible.items()
        }
        for sentence in TRANSFER_SENTENCES:
            self.sums.evaluations[sentence.identifier] += 1
        if (found := first_violation(TransferMoment(remote=remote, committed=self.contents.keys()))) is not None:
            raise _Found(found)

    def _judge_shelf(self) -> None:
        if (found := first_violation(TransferMoment(shelf=self.running.ask(_shelf)))) is not None:
            raise _Found(found)

    def pass_time(self, seconds: float) -> None:
        """The store's clock moves, and it looks at every time limit."""
        self.running.clock.time += seconds
        self.running.ask(_look_at_time)

    # ---- kinds of peers ---------------------------------------------------------------------------------------------------

    def meet(self, kind: Kind, number: int) -> None:
        """A peer that loses its connection at once."""
        chance = random.Random(f"{self.seed} {kind.name} {number}")
        peer = Peer(self.running.address)
        with closing(peer):
            with suppress(OSError):  # the store was faster
                kind.attack(peer, chance)
            has_token = kind.attack not in _STRANGERS
            self.judge(PeerMoment(kind.name, has_token=has_token, is_welcomed=peer.is_welcomed))
            self.judge(PeerMoment(kind.name, fault=kind.name, is_ended=peer.is_ended()))
        self.sums.reached[kind.name] += 1

    def outlast(self, kinds: list[Kind], count: int) -> None:
        """Peers that take their time, all at once, until it is up: 5 s for a greeting, 30 for a frame, 15 for a transfer."""
        peers: list[tuple[Kind, Peer]] = []
        for kind in kinds:
            for number in range(count):
                peers.append((kind, Peer(self.running.address)))
                kind.attack(peers[-1][1], random.Random(f"{self.seed} {kind.name} {number}"))
        for _ in range(8):
            self.pass_time(5.0)
            for _kind, peer in peers:
                with suppress(OSError):  # it has been ended
                    drip(peer)
            self.serve("peers that take their time")
        for kind, peer in peers:
            fault = f"{kind.name} for 40 s"
            self.judge(PeerMoment(kind.name, fault=fault, is_ended=peer.is_ended()))
            peer.close()
            self.sums.reached[kind.name] += 1

    def spoil(self, spoil: Spoil, number: int) -> None:
        """An engine behind a wire that spoils a frame: whoever got it ends the connection, and shows nothing wrong."""
        name = b"w%d" % number
        chance = random.Random(f"{self.seed} {spoil} {number}")
        with SpoilingWire(self.running.address, spoil, chance) as wire:
            engine = GoodEngine(wire.address, SystemClock(), name=name)
            self.contents.update({key: engine.content(place) for place, key in enumerate(engine.keys)})
            with suppress(AssertionError):  # no answer: judged below
                _provoke(engine, wire)
            self._judge_spoiled(spoil, wire, engine)
            engine.transport.close("the end")
        self.sums.reached[f"bits flipped {spoil.way}: {spoil.where}"] += 1

    def _judge_spoiled(self, spoil: Spoil, wire: SpoilingWire, engine: GoodEngine) -> None:
        if not wire.has_struck:
            self.sums.missed.append(f"{spoil}: no such frame came")
            return
        self.judge(PeerMoment(str(spoil), spoiled=str(spoil.where), is_ended=wire.ended_by is spoil.way))
        content = {
            block: (data, engine.content(block - 8)) for block, data in engine.pages.items() if block >= 8 and data != b""
        }
        if (found := first_violation(TransferMoment(content=content))) is not None:
            raise _Found(found)

    def fall_silent(self, number: int) -> None:
        """A store that stops in the middle of a block: its load is answered when its deadline has passed, whatever comes."""
        spoil = Spoil(Way.TO_ENGINE, protocol.Kind.BLOCK, None)
        chance = random.Random(f"{self.seed} {spoil} {number}")
        clock = HandClock()
        with SpoilingWire(self.running.address, spoil, chance) as wire:
            engine = GoodEngine(wire.address, clock, name=b"s%d" % number)
            self.contents.update({key: engine.content(place) for place, key in enumerate(engine.keys)})
            connector = engine.connector
            with suppress(AssertionError):
                _provoke(engine, wire, lambda: wire.has_struck)
            if not wire.has_struck:
                self.sums.missed.append(f"{spoil}: no such frame came")
            while clock.time < _LONGEST_SILENCE_S and not connector.counters.connections_lost:
                clock.time += 1.0
                connector.step()
            fault = "a load has 10 s, and its abort may go unanswered for as long"
            self.judge(PeerMoment(str(spoil), fault=fault, is_ended=connector.counters.connections_lost > 0))
            trouble = "" if [each.num_blocks < 8 for each in connector.take_answers()] == [True] else "its load has no answer"
            self.judge(PeerMoment(str(spoil), trouble=trouble))
            engine.transport.close("the end")
        self.sums.reached["half a block, then silence, to the engine"] += 1

    def relieve(self) -> None:
        """A peer that reads nothing until the store does not write to it any more, and then all: it is served again."""
        title = "a peer that was slow to read"
        peer = Peer(self.running.address, receive_bytes=4096)
        with closing(peer):
            peer.greet()
            for number in range(1, _LOADS + 1):
                peer.say(m.Open(number, False, 4096, tuple(self.good.keys)))
                peer.say(m.Credit(number, 8 * 4096))
            ends = time.monotonic() + _PATIENCE_S
            while not self.running.ask(_has_stalled):
                if time.monotonic() > ends:
                    self.sums.missed.append(f"{title}: the store never had to wait for it")
                    return
                time.sleep(0.005)
            self.serve("a peer that does not read")
            peer.say(m.Open(_LOADS + 1, False, 4096, (b"nobody has this",)))
            is_answered = False
            with suppress(OSError):
                while not is_answered:
                    found = peer.hear()
                    if isinstance(found, m.End):
                        peer.say(m.Ack(found.transfer, found.num_blocks))
                    is_answered = isinstance(found, m.Refuse) and found.transfer == _LOADS + 1
            self.judge(PeerMoment(title, relieved=True, is_answered=is_answered))
        self.sums.reached["congestion, then relief"] += 1

    # ---- declared limits --------------------------------------------------------------------------------------------------

    def ask_for(self, limit: Limit, *, is_guest: bool, beyond: bool) -> None:
        """Up to the limit, or one beyond it; a stranger gets neither."""
        with closing(Peer(self.running.address)) as peer:
            is_given = False
            with suppress(OSError):
                if is_guest:
                    peer.greet(name=b"%16d" % self.sums.reached["limits asked for"])  # a store knows who has said what
                is_given = limit.ask(peer, beyond)
        asked = f"{limit.name}, {'one beyond the limit' if beyond else 'up to the limit'}"
        self._judge_asked("a guest" if is_guest else "a stranger", asked, is_due=is_guest and not beyond, is_given=is_given)

    def _judge_asked(self, title: str, asked: str, *, is_due: bool, is_given: bool) -> None:
        self.judge(PeerMoment(title, asked=asked, is_due=is_due, is_given=is_given))
        self.sums.reached["limits asked for"] += 1

    def ask_for_limits(self) -> None:
        self.contents.update(STORED)
        for limit in GUESTS:
            for beyond in (False, True) if limit.has_beyond else (False,):
                self.ask_for(limit, is_guest=True, beyond=beyond)
            self.ask_for(limit, is_guest=False, beyond=False)
        for title, is_due, host, token in CONFIGURATIONS:
            self._judge_asked("whoever starts it", title, is_due=is_due, is_given=is_configured(host, token))
        whole = self.running.config.message_bytes
        for title, begin, most in (
            ("a stranger", None, GREETING_BYTES),
            ("a stranger that has said its name", hello, GREETING_BYTES),
            ("a guest", Peer.greet, whole),
        ):
            for beyond in (False, True):
                with closing(Peer(self.running.address)) as peer:
                    if begin is not None:
                        begin(peer)
                    begin_message(peer, most + beyond)
                    is_given = not peer.is_ended() if beyond else self._is_kept(peer)
                self._judge_asked(title, f"a message of {most + beyond} bytes", is_due=not beyond, is_given=is_given)

    def _is_kept(self, peer: Peer) -> bool:
        """Its connection is still there behind a round of the engine of good will."""
        self.serve("a peer that asks for what is declared")
        peer.socket.setblocking(False)
        try:
            return peer.socket.recv(1) != b""
        except BlockingIOError:
            return True
        except OSError:
            return False

    def sleep_over_it(self) -> None:
        """A peer that leaves unread what is due to it has a frame's time, also if nothing else of it is open."""
        frame_s = self.running.config.frame_s
        with closing(Peer(self.running.address, receive_bytes=4096)) as peer:
            if not congest(peer, lambda: self.running.ask(_has_stalled)):
                self.sums.missed.append("a peer that sleeps: the store never had to wait for it")
                return
            self.pass_time(frame_s - 0.1)
            is_kept = self.running.ask(_has_stalled)
            self._judge_asked("who reads nothing", f"{frame_s - 0.1:g} s", is_due=True, is_given=is_kept)
            self.pass_time(0.2)
            is_kept = self.running.ask(_has_stalled)
            self._judge_asked("who reads nothing", f"{frame_s + 0.1:g} s", is_due=False, is_given=is_kept)

    def fill_up(self, places: int = 6) -> None:
        """Guests first, then more strangers than there are places: they make room for each other, and nobody else does."""
        running = StoreInThread(max_connections=places)
        guests = [Peer(running.address) for _ in range(places - 2)]
        crowd: list[Peer] = []
        try:
            for guest in guests:
                guest.greet()
            for _ in range(2 * places):
                crowd.append(Peer(running.address))
                running.ask(lambda store: store.stats.accepted)
            for guest in guests:
                is_given = False
                with suppress(OSError):
                    guest.say(m.Open(1, False, 4096, (b"nobody has this",)))
                    is_given = isinstance(guest.hear(), m.Refuse)
                self._judge_asked("a guest among strangers", "a place in a full store", is_due=True, is_given=is_given)
            is_given = False
            with suppress(OSError):
                is_given = crowd[-1].greet() is not None
            self._judge_asked("who came last", "a stranger's place in a full store", is_due=True, is_given=is_given)
            found = running.ask(lambda store: len(store.connections))
            self._judge_asked("all of them", f"{found} of {places} places", is_due=True, is_given=found <= places)
        finally:
            for peer in (*guests, *crowd):
                peer.close()
            running.close()

    def close(self) -> None:
        self.good.transport.close("the end")
        self.running.close()


def _look_at_time(store: KvStore) -> None:
    for each in list(store.connections):
        each.check_time()


def _has_stalled(store: KvStore) -> bool:
    """Somebody does not read what is due to him."""
    return any(each.is_stalled for each in store.connections)


def _shelf(store: KvStore) -> Shelf:
    pool = store.pool
    blocks = map(pool.get, pool.keys())
    return Shelf(pool.used_bytes, sum(len(block.data) for block in blocks if block is not None), pool.capacity_bytes)


def _visible(store: KvStore) -> dict[bytes, StoredBlock | None]:
    return {key: store.pool.get(key) for key in tuple(store.pool.keys())}


def _provoke(engine: GoodEngine, wire: SpoilingWire, is_enough: Callable[[], bool] | None = None) -> None:
    """Stores and loads until the wire's victim has ended the connection. Raises AssertionError if it goes on."""
    connector = engine.connector
    is_over = is_enough or (lambda: wire.ended_by is not None)
    engine.until(lambda: is_over() or connector.session is protocol.State.OPEN)
    if not is_over():
        connector.store(engine.keys, range(8))
        engine.until(lambda: is_over() or not connector.transfers)
    if not is_over():
        engine.pages.update(dict.fromkeys(range(8, 16), b""))
        connector.ask("good", engine.keys)
        engine.until(
            lambda: (
                is_over()
                or any(connector.accept(hit.transfer, range(8, 8 + hit.num_blocks)) for hit in connector.take_hits())
                or not connector.transfers
            )
        )
    engine.until(is_over)


def _go_down(siege: _Siege) -> None:
    """A store that is down is tried ever more rarely, up to the stated bound, and for ever; one that speaks is tried soon."""
    for title, (config, tries) in (
        ("an engine before a store that is down", when_refused(_DOWN_S)),
        ("an engine before one that hangs up without a word", when_hung_up(b"", _DOWN_S)),
    ):
        least, most = config.retry_s, config.retry_most_s
        siege.judge(PeerMoment(title, tries=tries, least_wait_s=least, most_wait_s=most, slack_s=SLACK_S))
        siege.sums.reached["tries to connect in vain"] += len(tries)
    title = "an engine whose store speaks and hangs up, again and again"
    config, tries = when_hung_up(MAGIC, _SPEAKS_S)
    siege.judge(PeerMoment(title, tries=tries, most_wait_s=config.retry_s, slack_s=SLACK_S))
    siege.sums.reached["tries to connect to a store that speaks"] += len(tries)
    config, tries = when_unanswered(_UNANSWERED_S)
    most = config.connect_s + config.retry_most_s
    siege.judge(PeerMoment("an engine before a store that never answers", tries=tries, most_wait_s=most, slack_s=SLACK_S))
    siege.sums.reached["tries to connect without an answer"] += len(tries) - 2


def _break_down(siege: _Siege) -> None:
    """Stores that are there, and are no good; and what is left of a connection when it is lost."""
    for name, moments in before_broken_stores():
        for moment in moments:
            siege.judge(moment)
        siege.sums.reached[f"a store that {name}"] += 1
    for moment in behind_lost_connections():
        siege.judge(moment)
        siege.sums.reached["connections behind lost ones"] += 1


def _spoils(profile: Profile) -> Iterator[Spoil]:
    for way, kinds in _SPOILED.items():
        for kind in _FEW if profile is Profile.QUICK else kinds:
            yield from (Spoil(way, protocol.Kind[kind], where) for where in Field)


def _turn(kind: Kind) -> int:
    """Strangers come first: who is let in without the token could do anything."""
    return _STRANGERS.index(kind.attack) if kind.attack in _STRANGERS else len(_STRANGERS)


def _besiege(siege: _Siege, profile: Profile, progress: Callable[[int, int], None]) -> None:
    """Everybody comes, one kind after another, and the engine of good will is served beside each."""
    count = _EACH[profile]
    sharp = sorted((kind for kind in KINDS if kind.ends), key=_turn)
    rounds = 1 if profile is not Profile.NIGHTLY else count // 10
    spoils = [spoil for _ in range(rounds) for spoil in _spoils(profile)]
    total = len(sharp) + len(spoils) + 4
    _go_down(siege)
    _break_down(siege)
    for done, kind in enumerate(sharp, start=1):
        for number in range(count):
            siege.meet(kind, number)
        siege.serve(kind.name)
        progress(done, total)
    for number, spoil in enumerate(spoils):
        siege.spoil(spoil, number)
        siege.serve(str(spoil))
        progress(len(sharp) + number + 1, total)
    for number in range(rounds):
        siege.relieve()
        siege.serve("a peer that was slow to read")
        siege.fall_silent(number)
    siege.ask_for_limits()
    siege.sleep_over_it()
    siege.fill_up()
    siege.serve("peers that ask for all that is declared")
    siege.outlast([kind for kind in KINDS if not kind.ends], min(count, _MOST_HELD))
    progress(total, total)


def _floors(profile: Profile) -> Iterator[tuple[str, int]]:
    count = _EACH[profile]
    yield from ((kind.name, count if kind.ends else min(count, _MOST_HELD)) for kind in KINDS)
    kinds = {way: len(_FEW if profile is Profile.QUICK else names) for way, names in _SPOILED.items()}
    yield from ((f"bits flipped {way}: {where}", kinds[way]) for way in Way for where in Field)
    yield from (("congestion, then relief", 1), ("half a block, then silence, to the engine", 1))
    yield ("limits asked for", 40)
    yield from (("tries to connect in vain", 30), ("tries to connect to a store that speaks", 10))
    yield from ((f"a store that {kind.name}", 1) for kind in BROKEN_STORES)
    yield from (("tries to connect without an answer", 2), ("connections behind lost ones", 4))


def check_hostile_peers(context: SuiteContext) -> CheckResult:
    """Peers, up to the first violation. A kind that did not come as often as it should makes the run unknown."""
    sums = Sums()
    failure = None
    siege = _Siege(sums, context.seed)
    try:
        siege.serve("nobody")
        _besiege(siege, context.profile, context.progress)
    except _Found as found:
        failure = failure_of(SUITE_ID, found.violation, f"{context.seed:#x}")
    finally:
        siege.close()
    floors = dict(_floors(context.profile))
    sums.require(floors)
    sums.examples = sum(sums.reached[name] for name in floors)
    sums.ops = sums.examples
    return sums.result(SUITE_ID, [failure], f"{sums.examples} peers of {len(floors)} kinds beside an engine that is served")
