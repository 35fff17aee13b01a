"""What must hold of KV transfers between an engine and a remote pool (DI-3, DI-4, DI-5).

Owns the sentences and the value that they judge: one instant, seen from outside at both ends. Whoever runs a connector fills it
in; a column that it can not see stands at its default. Knows no connector and no store.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from properties.invariants.predicate import blocks_named, violation
from properties.verdict import Violation


class ClientTransfer(NamedTuple):
    """A transfer that the engine's end has not forgotten. ``blocks``: those that it pins. ``waits``: a request waits for it."""

    number: int
    generation: int
    is_store: bool
    is_aborting: bool
    blocks: tuple[int, ...]
    num_keys: int
    granted: int  # bytes of blocks, since the transfer began on this connection; here and below
    moved: int
    waits: bool = False


class RemoteTransfer(NamedTuple):
    """A transfer that the store's end has not forgotten. ``keys``: those that it pins in the pool."""

    number: int
    is_store: bool
    keys: tuple[bytes, ...]
    granted: int
    moved: int


class Write(NamedTuple):
    """A transfer wrote a block."""

    transfer: int
    generation: int
    block: int


class Shelf(NamedTuple):
    """Bytes of content at the store: as it counts them, as they lie there, and the most that may."""

    counted: int
    lying: int
    capacity: int


class Told(NamedTuple):
    """A request's ending: what it gave out, and what it gives out where nothing is ever transferred."""

    request: str
    found: object
    expected: object


@dataclass(frozen=True, slots=True)
class TransferMoment:
    """``pins``: block -> pins in the engine's pool. ``free``: blocks that anybody may take. ``content`` and ``remote``: for
    each visible block of the engine, and each visible key of the store, the content found and the one that its key
    stands for. ``under_way``: for each load of which a block may still arrive, what it was accepted into.
    ``committed``: keys of the stores that were sent whole, to their END. ``repeated``: the store's visible keys
    before and behind a transfer that had been complete before. ``answers``: how often each load was answered.
    ``aborted``: loads whose request went. ``is_quiet``: everything that could arrive has arrived, but for the
    transfers that are ``held_up``. ``shelf``: what the store says that its content takes, what lies there, its capacity.
    """

    generation: int = 0
    window_bytes: int = 0  # of a load
    store_window_bytes: int = 0  # of a store
    pins: Mapping[int, int] = field(default_factory=dict)
    free: Collection[int] = ()
    clients: tuple[ClientTransfer, ...] = ()
    remotes: tuple[RemoteTransfer, ...] = ()
    remote_pins: Mapping[bytes, int] = field(default_factory=dict)
    under_way: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    writes: tuple[Write, ...] = ()
    content: Mapping[int, tuple[object, object]] = field(default_factory=dict)
    remote: Mapping[bytes, tuple[object, object]] = field(default_factory=dict)
    committed: Collection[bytes] = ()
    repeated: tuple[Mapping[bytes, object], Mapping[bytes, object]] | None = None
    answers: Mapping[int, int] = field(default_factory=dict)
    aborted: Collection[int] = ()
    told: tuple[Told, ...] = ()
    is_quiet: bool = False
    held_up: Collection[int] = ()
    shelf: Shelf | None = None


@dataclass(frozen=True, slots=True)
class TransferSentence:
    """A named positive sentence over one instant of the transfers."""

    identifier: str
    check: Callable[[TransferMoment], Violation | None]

    @property
    def sentence(self) -> str:
        return self.check.__name__.replace("_", " ")


def writes_land_in_blocks_of_their_transfer(moment: TransferMoment) -> Violation | None:
    """DI-3: a transfer writes only where it still holds a pin, and only in this generation.

    Source: sglang's prefill/decode split, a page given away while its remote writer was active.
    """
    held = {(each.number, each.generation): each.blocks for each in moment.clients}
    for write in moment.writes:
        subject = f"the write of transfer {write.transfer} into block {write.block}"
        if write.generation != moment.generation:
            return violation("DI-3", subject, f"generation {write.generation}", f"generation {moment.generation}")
        if write.block not in held.get((write.transfer, write.generation), ()):
            return violation("DI-3", subject, "no pin of the transfer on the block", "a pin until nothing can arrive any more")
    return None


def blocks_stay_pinned_while_writes_are_under_way(moment: TransferMoment) -> Violation | None:
    """DI-3: as long as the store may write a block, or a write is under way, the block is pinned.

    Source: sglang's prefill/decode split (a page follows its request only), vllm (siblings of a failed handle still write).
    """
    for number, blocks in moment.under_way.items():
        if bare := [block for block in blocks if not moment.pins.get(block)]:
            return violation("DI-3", blocks_named(bare), "no pin", f"pinned: writes of transfer {number} are under way")
    return None


def visible_blocks_hold_what_their_keys_say(moment: TransferMoment) -> Violation | None:
    """DI-3: what became visible arrived whole and checked: its content is the one that its key stands for, at both ends.

    Source: sglang (an aborted prefill handed over incomplete KV), Mooncake (only the first chunk of a transfer was right).
    """
    for block, (found, expected) in moment.content.items():
        if found != expected:
            return violation("DI-3", f"visible block {block}", found, expected)
    for key, (found, expected) in moment.remote.items():
        if found != expected:
            return violation("DI-3", f"key {key!r} of the store", found, expected)
    return None


def the_store_shows_committed_blocks_only(moment: TransferMoment) -> Violation | None:
    """DI-3: a block can be found in the store only if a store that holds it was sent to its end.

    Source: Mooncake (a removed key came back through a queued offload), sglang (an aborted prefill was taken for complete).
    """
    for key in moment.remote:
        if key not in moment.committed:
            return violation("DI-3", f"key {key!r} of the store", "visible", "nothing before the END of its transfer")
    return None


def pins_are_those_of_transfers(moment: TransferMoment) -> Violation | None:
    """DI-3: each block is pinned once for each transfer that may still read or write it, and no pinned block is free.

    Source: vllm (a first failing handle released blocks that its siblings still wrote), LMCache (pins left, pins undone twice).
    """
    due = Counter(block for each in moment.clients for block in each.blocks)
    found = {block: count for block, count in moment.pins.items() if count}
    if found != due:
        block = min(block for block in due.keys() | found.keys() if due[block] != found.get(block, 0))
        holders = [each.number for each in moment.clients if block in each.blocks]
        return violation("DI-3", f"block {block}", f"{found.get(block, 0)} pins", f"{due[block]}, by transfers {holders}")
    if freed := [block for block in due if block in moment.free]:
        return violation("DI-3", blocks_named(freed), "free", "held until its transfer has ended")
    return None


def sources_stay_pinned_until_acknowledged(moment: TransferMoment) -> Violation | None:
    """DI-3: a store that was neither acknowledged nor given up pins all that it sends; a load pins what it reads at the store.

    Source: vllm (the sending side freed blocks by a timeout of which the reading side knew nothing).
    """
    for each in moment.clients:
        if each.is_store and not each.is_aborting and len(each.blocks) != each.num_keys:
            return violation("DI-3", f"store {each.number}", f"{len(each.blocks)} blocks pinned", f"{each.num_keys}")
    due = Counter(key for each in moment.remotes for key in each.keys)
    found = {key: count for key, count in moment.remote_pins.items() if count}
    if found != due:
        key = min(key for key in due.keys() | found.keys() if due[key] != found.get(key, 0))
        return violation("DI-3", f"key {key!r} of the store", f"{found.get(key, 0)} pins", f"{due[key]}")
    return None


def pinned_sources_are_still_there(moment: TransferMoment) -> Violation | None:
    """DI-3: what the store has offered it keeps until the load is acknowledged or its lease is over."""
    for key in moment.remote_pins:
        if key not in moment.remote:
            return violation("DI-3", f"key {key!r} of the store", "evicted under a pin", "kept until the lease is over")
    return None


def repeated_transfers_change_nothing(moment: TransferMoment) -> Violation | None:
    """DI-3: a transfer that was complete and is said again leaves the store as it was.

    Source: sglang (a transfer identifier given twice ended both schedulers).
    """
    if moment.repeated is not None and moment.repeated[0] != moment.repeated[1]:
        before, after = moment.repeated
        changed = sorted(key for key in before.keys() | after.keys() if before.get(key) != after.get(key))
        return violation("DI-3", "a repeated transfer", f"keys {changed} changed", "the store as before")
    return None


def loads_are_answered_once(moment: TransferMoment) -> Violation | None:
    """DI-3: a request that waits is told once how much has arrived, whatever happens to its load; one that is gone, never; and
    nobody waits for a transfer that has ended.

    Source: vllm (a completion and an expiry for one request; a sender that failed to start told nobody), vllm-ascend (the
    end of an aborted load was filtered away).
    """
    for number, count in moment.answers.items():
        if count > 1 or number in moment.aborted:
            return violation("DI-3", f"load {number}", f"{count} answers", "0" if number in moment.aborted else "1")
        if count and any(each.number == number and each.waits for each in moment.clients):
            return violation("DI-3", f"load {number}", "answered, and its request waits still", "one or the other")
    return None


def outputs_equal_those_without_transfers(moment: TransferMoment) -> Violation | None:
    """DI-4: what a request gives out does not depend on what was loaded, lost or cut.

    Source: vllm (after a rejected load the scheduler went back and the worker did not).
    """
    for told in moment.told:
        if told.found != told.expected:
            return violation("DI-4", f"request {told.request}", told.found, told.expected)
    return None


def bytes_in_flight_stay_within_credit(moment: TransferMoment) -> Violation | None:
    """DI-5: a source sends no more than was granted to it, and what is granted and has not come is at most the window.

    Source: RFC 9000, section 4 (cumulative limits of a stream, given by its receiver).
    """
    ends = {each.number: each for each in moment.remotes}
    for client in moment.clients:
        remote = ends.get(client.number)
        if remote is None or remote.is_store != client.is_store:
            continue
        source, sink = (client, remote) if client.is_store else (remote, client)
        window = moment.store_window_bytes if client.is_store else moment.window_bytes
        if source.moved > source.granted:
            return violation("DI-5", f"transfer {client.number}", f"{source.moved} bytes sent", f"at most {source.granted}")
        if max(source.moved, sink.granted) - sink.moved > window:
            found = f"{max(source.moved, sink.granted) - sink.moved} bytes under way or granted"
            return violation("DI-5", f"transfer {client.number}", found, f"at most {window}")
    return None


def slow_transfers_slow_only_themselves(moment: TransferMoment) -> Violation | None:
    """DI-5: where everything else has arrived, only the transfers that are held up have not ended."""
    if moment.is_quiet:
        late = [each.number for each in moment.clients if each.number not in moment.held_up]
        if late:
            expected = f"ended: only {sorted(moment.held_up)} are held up"
            return violation("DI-5", f"transfers {late}", "open though nothing is under way", expected)
    return None


def the_store_counts_what_lies_there(moment: TransferMoment) -> Violation | None:
    """DI-3: what a store says that its content takes is what lies there, at every instant, and fits: what is counted twice, or
    is gone and counted still, is room that nobody can have again.

    Source: LMCache (a storage backend added the size of an entry again when it was written again).
    """
    if moment.shelf is None:
        return None
    counted, lying, capacity = moment.shelf
    if counted != lying:
        return violation("DI-3", "the content of the store", f"{counted} bytes by its own count", f"{lying}, as lie there")
    if lying > capacity:
        return violation("DI-3", "the content of the store", f"{lying} bytes", f"at most {capacity}")
    return None


TRANSFER_SENTENCES: Final = (
    TransferSentence("DI-3", writes_land_in_blocks_of_their_transfer),
    TransferSentence("DI-3", blocks_stay_pinned_while_writes_are_under_way),
    TransferSentence("DI-3", visible_blocks_hold_what_their_keys_say),
    TransferSentence("DI-3", the_store_shows_committed_blocks_only),
    TransferSentence("DI-3", pins_are_those_of_transfers),
    TransferSentence("DI-3", sources_stay_pinned_until_acknowledged),
    TransferSentence("DI-3", pinned_sources_are_still_there),
    TransferSentence("DI-3", repeated_transfers_change_nothing),
    TransferSentence("DI-3", loads_are_answered_once),
    TransferSentence("DI-3", the_store_counts_what_lies_there),
    TransferSentence("DI-4", outputs_equal_those_without_transfers),
    TransferSentence("DI-5", bytes_in_flight_stay_within_credit),
    TransferSentence("DI-5", slow_transfers_slow_only_themselves),
)


def first_violation(moment: TransferMoment) -> Violation | None:
    """The first sentence that does not hold."""
    return next((found for each in TRANSFER_SENTENCES if (found := each.check(moment)) is not None), None)
