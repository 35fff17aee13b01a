"""What a target is and promises, as a harness reads it before it judges anything, and what may be done to its link.

Values only, as in `types.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from engine_under_test.types import Adapter


class LinkFault(StrEnum):
    """What befalls the link between an engine and its remote pool, or the pool itself."""

    NONE = "none"  # whatever was wrong is over
    STALL = "stall"  # nothing arrives until it is over
    CUT = "cut"  # the connection is lost, and what was under way with it; there is a new one at once
    LOSE = "lose"  # the next message of each transfer gets lost
    REPEAT = "repeat"  # the next message of each transfer arrives twice
    STORE_DIES = "store_dies"  # the pool is empty, and the connection lost
    ROT = "rot"  # the pool's memory loses a bit of each block


class DeclaredOrder(StrEnum):
    """In which order waiting requests are admitted."""

    FIRST_COME = "first_come"  # by acceptance; a preempted one keeps its place
    PRIORITY = "priority"  # by (priority, acceptance), but for the overtake bound
    UNDECLARED = "undeclared"


class VictimSet(StrEnum):
    """Which running choices may be preempted."""

    NONE = "none"  # the target never preempts
    LAST_IN_ORDER = "last_in_order"  # the last of the running ones in the declared order, then the one before it, ...
    ANY_BUT_FIRST = "any_but_first"  # any running choice except the first in the declared order


class ReferenceModel(StrEnum):
    """What a reference count counts."""

    PER_TABLE = "per_table"  # the holders (tables, reservations, pins) that name the block
    PATH_LOCK = "path_lock"  # locks on the radix-tree path that contains the block; counts are not comparable per block


@dataclass(frozen=True, slots=True)
class Caps:
    """What a target is and promises. Bounds given here are the "stated" bounds of the catalogue; the harness prints them.

    ``block_size``: slots a block; 1 for targets that manage single tokens. ``num_blocks``: usable blocks.
    ``has_padding``: physical block 0 is a padding block and never used for data.
    ``progress_bound``: with faults over, the most iterations in which some live choice that is not waiting for a
    fence emits no token. ``overtake_bound``: how often a waiting request may see a later one admitted before it; by priority,
    whoever saw as many goes first from then on, to its end.
    ``preemption_bound``: how often a choice may be preempted in a row without emitting a token; None: not stated.
    ``deadline_slack``: iterations by which an end by deadline may come late. ``num_host_blocks``: blocks of a swap pool,
    numbered behind the others, touched by copies only; a preempted choice may go on from what lies there, in the middle.
    ``num_adapter_slots``: slots for adapters on the device; 0: it has none, or does not show them.
    ``adapter_overtake_bound``: how often one who waits for such a slot may see a later one admitted before it, in first-come
    order; in another order that counts among ``overtake_bound``.
    ``load_bound_s``: how long a waiting choice may be passed over for a load. ``max_held_blocks``: of the pool, by transfers;
    ``max_stored_blocks``: what a store may bring these up to; 0: not stated.
    ``num_sought``: so many of those that wait, from the first on, are asked for there in each poll. ``max_drafts``: for a row
    and step; 0: the target does not speculate.
    """

    name: str
    block_size: int
    num_blocks: int
    max_tokens_per_step: int
    max_num_seqs: int
    vocab_size: int
    progress_bound: int
    overtake_bound: int
    deadline_slack: int = 1
    preemption_bound: int | None = None
    max_active_adapters: int = 1
    adapters: tuple[Adapter, ...] = ()  # loaded at the beginning
    num_adapter_slots: int = 0
    adapter_overtake_bound: int = 0
    model_revision: str = ""
    order: DeclaredOrder = DeclaredOrder.FIRST_COME
    victims: VictimSet = VictimSet.NONE
    reference_model: ReferenceModel = ReferenceModel.PER_TABLE
    max_plans_in_flight: int = 1
    num_host_blocks: int = 0
    load_bound_s: float = 0.0
    max_stored_blocks: int = 0
    max_held_blocks: int = 0
    num_sought: int = 0
    max_drafts: int = 0
    has_padding: bool = True
    evicts_on_demand: bool = False  # False: a cached block leaves the index when it is taken; True: beforehand, in bulk
    has_prefix_cache: bool = True
    has_lookup: bool = False  # verb `lookup`
    has_abort: bool = True
    has_choices: bool = False  # accepts `SamplingParams.n` > 1, sharing the prompt's blocks between choices
    has_deadlines: bool = False
    has_reset: bool = False  # verb `reset_cache`
    has_transaction: bool = False  # verbs `reserve`, `launch`, `rollback`, `abandon`
    has_fences: bool = False  # blocks released while a plan that uses them is unsettled are quarantined
    has_restart: bool = False  # verb `restart`
    has_transfers: bool = False  # transfers pin blocks; they begin and end in `poll`
    has_remote: bool = False  # a remote pool: `Snapshot.loading` says who waits for it, and is passed over meanwhile
    has_adapter_loads: bool = False  # verbs `load_adapter`, `unload_adapter`
    has_events: bool = False  # verb `take_events`
    is_closed_behind_victims: bool = False  # nobody enters with a plan for which somebody was preempted
    has_stream_order: bool = False  # blocks are reused while plans in flight use them: one stream puts that in order
    has_late_aborts: bool = False  # what is in flight at an abort still commits, and is told to nobody
    has_documented_keys: bool = True  # entries of the index stand under the keys of docs/prefix-key.md
    has_grammars: bool = False  # requests may have a grammar of those that the harness has a law for
    has_namespaces: bool = True  # tenants, salts, adapters and media separate what the prefix cache shares
    has_length_check: bool = True  # what can never fit is refused at the door
    has_running_bound: bool = True  # `max_num_seqs` bounds who runs, not only the rows of a plan
