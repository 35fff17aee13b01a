"""The second traffic of a connector storm: whole engines, each in a World, that share a real store.

Owns requests with shared prefixes, and the engine's end of a real connection as a World's remote side. Every step is judged by
all the catalogue, every token and every block that comes from the store by the law; beside that by what was said on the
connection. Every other engine computes on the simulated device, whose streams run late, and each at a depth of overlap of its
own. The engine's own clock follows the wall clock, and nothing of it is repeatable bit for bit.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import replace
from random import Random

from chaos.connector_account import Account, Sight
from chaos.connector_tap import Tap
from chaos.connector_traffic import (
    PATIENCE_S,
    STORE_WINDOW_BYTES,
    Stalls,
    draw_op,
    judge_connection,
    remotes_of,
    tapped,
    totals_of,
)
from chaos.storm import PCT_DEPTH
from engine_under_test.adapters.ours import AssayTarget
from engine_under_test.book import Book
from engine_under_test.caps import LinkFault
from engine_under_test.config import EngineConfig
from engine_under_test.distributed.connector import Connector
from engine_under_test.distributed.content import content_key
from engine_under_test.distributed.protocol import Machine, State
from engine_under_test.distributed.transfers import KvPages, LoadAnswer
from engine_under_test.execution.runner import Mover
from engine_under_test.execution.schedule import Chance, Priorities
from engine_under_test.kv.prefix_index import blake2b_16
from engine_under_test.kv.transaction import KvTransaction
from engine_under_test.remote import RemotePrefixes
from engine_under_test.seams import Clock, Observer
from engine_under_test.types import FinishReason, Output, Request, SamplingParams
from models.device import Device
from models.law import Law as Fingerprints
from models.law import Track
from models.prefix_key import namespace
from models.streamed_device import StreamedDevice
from models.world import World
from properties.checkers import CHECKERS, run_checkers
from properties.invariants.predicate import violation
from properties.invariants.transfers import ClientTransfer, Told, TransferMoment, first_violation
from properties.kv_end import KvViolation, Law
from properties.kv_sizes import on_wall_clock
from properties.op import Op, OpKind

_LAYOUT = b"fingerprints"
_BLOCK_SIZE = 64  # tokens
_BLOCK_BYTES = 16 * _BLOCK_SIZE
_PROBE = 1_000_000
_LEAST_PROBES = 5  # on a machine so busy that seconds pass between two steps, a load may miss its deadline
_PCT_STEPS = 20_000  # of a device in a storm, at most
ENGINE = EngineConfig(num_blocks=40, block_size=_BLOCK_SIZE, vocab_size=64, max_tokens_per_step=256, max_num_seqs=4)
DEPTHS = 3  # of overlap: 0, 1, 2
CONFIG = on_wall_clock(_BLOCK_BYTES)


class _Watched(Connector):
    """Remembers what it was given, for the sentences on transfers."""

    def __init__(self, pages: KvPages, tap: Tap, clock: Clock, identity: bytes) -> None:
        super().__init__(CONFIG, pages, tap, clock, identity)
        self.accepted: dict[int, tuple[int, ...]] = {}
        self.answered: Counter[int] = Counter()
        self.gone: set[int] = set()

    def accept(self, transfer: int, blocks: Sequence[int]) -> bool:
        is_accepted = super().accept(transfer, blocks)
        if is_accepted:
            self.accepted[transfer] = tuple(blocks)
        return is_accepted

    def abort(self, transfer: int) -> None:
        if not self.answered[transfer]:
            self.gone.add(transfer)
        super().abort(transfer)

    def take_answers(self) -> list[LoadAnswer]:
        found = super().take_answers()
        self.answered.update(answer.transfer for answer in found)
        return found


class TcpSide:
    """See `adapters.ours.RemoteSide`: a real connection, which only real faults disturb."""

    load_bound_s = CONFIG.load_deadline_s + PATIENCE_S

    def __init__(self, who: str, address: tuple[str, int], account: Account) -> None:
        self.tap = tapped(who, address, account, _BLOCK_BYTES)
        self._identity = hashlib.sha256(who.encode()).digest()[:16]
        self._account = account
        self.connector: _Watched

    def connect(self, kv: KvTransaction, book: Book, mover: Mover, clock: Clock, observer: Observer) -> RemotePrefixes:
        """The connector lives by the wall clock; the engine's own clock follows it."""
        del clock
        return RemotePrefixes(kv, book, mover, self._connector, _LAYOUT, observer)

    def disturb(self, fault: LinkFault) -> bool:
        del fault
        return False

    def _connector(self, pages: KvPages) -> Connector:
        self.connector = _Watched(pages, self.tap, self._account.clock, self._identity)
        return self.connector


class _Served:
    """One engine in its World."""

    def __init__(self, who: str, address: tuple[str, int], account: Account, chance: Random, turn: int) -> None:
        self.who = who
        self.side = TcpSide(who, address, account)
        config = replace(ENGINE, max_plans_in_flight=1 + turn % DEPTHS)
        target = AssayTarget(config, blake2b_16, self.side)
        chooser = Chance(turn) if turn % 4 < 2 else Priorities(turn, _PCT_STEPS, PCT_DEPTH)
        self.device = StreamedDevice(target.caps, chooser) if turn % 2 else Device(target.caps)
        self.world = World(target, hasher=blake2b_16, device=self.device)
        self.requests: list[Request] = []
        self.loaded_before = 0
        self.evaluations: Counter[str] = Counter()
        self._chance = chance
        self._clock = account.clock
        self._now_s = account.clock.now()

    def apply(self, op: Op) -> None:
        self.world.apply(op)
        if self.world.violation is not None:
            raise KvViolation(self.world.violation)

    def step(self) -> None:
        now = self._clock.now()
        self.apply(Op(OpKind.ADVANCE, seconds=now - self._now_s))
        self._now_s = now
        if self._chance.random() < 0.1:
            self.apply(Op(OpKind.PLAN))  # from here on, one plan more is in flight
        self.apply(Op(OpKind.STEP))
        self.judge()

    @property
    def is_idle(self) -> bool:
        world = self.world
        snapshot = world.snapshot
        return not (world.num_live or world.num_in_flight or snapshot.unsettled or self.side.connector.transfers)

    def judge(self, *, is_quiet: bool = False) -> None:
        connector, tap, snapshot = self.side.connector, self.side.tap, self.world.snapshot
        pins = Counter(snapshot.pinned)
        due = Counter(block for each in connector.transfers.values() for block in each.blocks)
        waits: set[Hashable] = set(snapshot.loading)
        moment = TransferMoment(
            generation=connector.generation,
            window_bytes=CONFIG.window_bytes,
            store_window_bytes=STORE_WINDOW_BYTES,
            pins={block: min(pins[block], count) for block, count in due.items()},  # a request pins what it accepted too
            free=tuple(set(snapshot.free).intersection(due)),
            clients=tuple(
                ClientTransfer(
                    each.number, connector.generation, each.machine is Machine.STORE_SOURCE, each.state is State.ABORTING,
                    each.blocks, len(each.opened.keys), each.granted, each.moved, each.owner in waits,
                )
                for each in connector.transfers.values()
            ),
            remotes=remotes_of(tap),
            under_way={number: connector.accepted[number] for number in tap.may_still_write() if number in connector.accepted},
            answers=dict(connector.answered),
            aborted=frozenset(connector.gone),
            is_quiet=is_quiet,
        )  # fmt: skip
        self.evaluations["DI-3"] += bool(moment.clients)
        self.evaluations["DI-5"] += len(moment.clients)
        for each in connector.transfers.values():
            if each.owner is not None and each.owner not in waits:
                words = f"it goes on for {each.owner}"
                raise KvViolation(violation("DI-3", f"load {each.number}", words, "aborted: nobody waits for it"))
        if found := first_violation(moment) or judge_connection(self.who, connector, tap):
            raise KvViolation(found)

    def judge_history(self) -> None:
        """What each request was told is what the law says, whatever was loaded, lost or cut; and the sentences on a history."""
        streams, whole = dict[str, list[int]](), set[str]()
        for output in self.world.history.of(Output):
            streams.setdefault(output.request_id, []).extend(output.token_ids)
            if output.finish_reason is FinishReason.LENGTH:
                whole.add(output.request_id)
        laws, told = Fingerprints(ENGINE.vocab_size), []
        for request in self.requests:
            found, name = streams.get(request.request_id, []), request.request_id
            due = _served_whole(laws, request).tokens[len(request.prompt) :]
            told.append(Told(name, found, due if name in whole else due[: len(found)]))
        self.evaluations["DI-4"] += len(told)
        wrong = first_violation(TransferMoment(told=tuple(told)))
        for verdict in run_checkers(self.world.history, CHECKERS):
            self.evaluations[verdict.identifier] += verdict.evidence
            wrong = wrong or verdict.violation
        if wrong is not None:
            raise KvViolation(wrong)


def _served_whole(laws: Fingerprints, request: Request) -> Track:
    """Prompt and all the output, and the cells of both."""
    track = laws.open(request, 0)
    while len(track.tokens) < len(request.prompt) + request.sampling.max_tokens:
        laws.extend([track], [len(track.tokens)])
        track.tokens += laws.next_tokens([track], [len(track.tokens)])
    laws.extend([track], [len(track.tokens)])
    return track


class EngineTraffic:
    """See `connector_traffic.Traffic`."""

    def __init__(self, seed: int, addresses: Sequence[tuple[str, int]], account: Account, stalls: Stalls) -> None:
        self._stalls = stalls
        self._chance = Random(f"connector engines/{seed}")
        self.served = [
            _Served(f"engine {at}", address, account, self._chance, seed + at) for at, address in enumerate(addresses)
        ]
        self.taps: Sequence[Tap] = [each.side.tap for each in self.served]
        self._account = account
        self._seed = seed
        self._number = 0
        self._probing_s = 0.0

    @property
    def evaluations(self) -> Counter[str]:
        return sum((each.world.evaluations + each.evaluations for each in self.served), Counter())

    @property
    def block_bytes(self) -> int:
        return _BLOCK_BYTES

    def act(self) -> None:
        op = draw_op(self._chance, len(self.served))
        each = self.served[op.engine]
        self._number += 1
        if self._stalls.is_still(op.engine):
            return
        live = [request for request in each.requests if each.world.facts.requests.keys_of(request.request_id)]
        if op.kind == "begin" and len(live) < 2 * ENGINE.max_num_seqs:
            request = self._request(f"r{self._number}", op.family, op.length)
            words = f"asks with {len(request.prompt)} tokens of family {op.family}"
            self._add(each, request)
        elif op.kind == "abort" and live:
            loading = [row.request_id for row in each.world.snapshot.loading]  # where it is hardest
            names = loading or [request.request_id for request in live]
            words = f"aborts {names[op.family % len(names)]}"
            each.apply(Op(OpKind.ABORT, request_id=names[op.family % len(names)]))
        elif op.kind == "forget":
            words = "resets its cache"
            each.apply(Op(OpKind.RESET_CACHE))
        elif op.kind == "restart":
            words = "restarts"
            each.apply(Op(OpKind.RESTART))
        else:
            words = "does nothing"
        each.judge()
        self._account.note(each.who, Sight.ACTED, words=words)

    def turn(self) -> None:
        for number, each in enumerate(self.served):
            if not self._stalls.stands_still(number, each.side.connector):
                each.step()

    def hang_up(self) -> None:
        for tap in self.taps:
            tap.close("the engine hangs up")

    @property
    def is_connected(self) -> bool:
        return all(each.side.connector.session is State.OPEN for each in self.served)

    @property
    def is_idle(self) -> bool:
        return self.is_connected and all(each.is_idle for each in self.served)

    def probe(self, number: int) -> bool:
        """The first engine computes and stores what nobody had, and each other one loads it."""
        attempt, place = divmod(number, len(self.served))
        if not place:
            now = self._account.clock.now()
            self._probing_s = self._probing_s or now
            loaded = [self._loaded(each) - each.loaded_before for each in self.served[1:]]
            if attempt and min(loaded) >= 4:
                return False
            if attempt >= _LEAST_PROBES and now - self._probing_s > TcpSide.load_bound_s:
                raise KvViolation(violation("DI-3", "behind the storm", f"engines {loaded} blocks of another one's", "4 each"))
            for each in self.served:
                each.loaded_before = self._loaded(each)
        each = self.served[place]
        each.apply(Op(OpKind.RESET_CACHE))
        self._add(each, self._request(f"probe {number}", _PROBE + attempt, 5))
        return True

    def end(self) -> None:
        """Quiet: nothing lives, nothing is pinned, every block is home; the Worlds judge that by all the catalogue."""
        for each in self.served:
            each.apply(Op(OpKind.DRAIN))
            each.apply(Op(OpKind.RESET_CACHE))
            each.apply(Op(OpKind.DRAIN))
            each.judge(is_quiet=True)
            pinned = each.world.snapshot.pinned
            if pinned:
                raise KvViolation(violation("DI-3", f"{each.who} behind the drain", f"blocks {pinned} pinned", "none"))
            each.judge_history()

    def law(self) -> Law:
        """From the requests: their tokens, their cells, and the keys of the blocks that hold them."""
        laws, known = Fingerprints(ENGINE.vocab_size), dict[bytes, bytes]()
        for request in (request for each in self.served for request in each.requests):
            track = _served_whole(laws, request)
            raw = laws.cells([track], [len(track.tokens)]).tobytes()
            parent, name = b"", namespace(ENGINE.model_revision, request)
            for start in range(0, len(track.tokens) - _BLOCK_SIZE + 1, _BLOCK_SIZE):
                parent = content_key(_LAYOUT, name, parent, track.tokens[start : start + _BLOCK_SIZE])
                known[parent] = raw[16 * start : 16 * (start + _BLOCK_SIZE)]
        return lambda key: known.get(key, b"a key that no request has")

    def reached(self) -> Counter[str]:
        total = Counter[str]()
        for each in self.served:
            total += totals_of(each.side.connector, each.side.tap)
            total["steps of engines"] += each.world.checked_steps
            total[f"steps at depth {each.world.caps.max_plans_in_flight - 1}"] += each.world.checked_steps
            if isinstance(each.device, StreamedDevice):
                total["steps on streams"] += each.world.checked_steps
                total["operations of the device"] += each.device.simulated.num_run
            total["requests"] += len(each.requests)
        return total

    def _add(self, each: _Served, request: Request) -> None:
        each.requests.append(request)
        each.apply(Op(OpKind.ADD, request=request))

    def _request(self, name: str, family: int, num_blocks: int) -> Request:
        shared = Random(f"family {family}/{self._seed}")
        prompt = [shared.randrange(ENGINE.vocab_size) for _ in range(_BLOCK_SIZE * num_blocks)]
        own = [self._chance.randrange(ENGINE.vocab_size) for _ in range(self._chance.randint(1, _BLOCK_SIZE))]
        sampling = SamplingParams(
            max_tokens=self._chance.randint(2, 12),
            temperature=self._chance.choice((0.0, 1.0)),
            seed=self._chance.randrange(2**32),
        )
        return Request(name, (*prompt, *own), sampling)

    @staticmethod
    def _loaded(each: _Served) -> int:
        return each.side.connector.counters.loaded_blocks
