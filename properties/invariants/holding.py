"""What transfers to and from a remote pool may hold of the engine's own blocks (DI-5).

Never: how long they must hold it, which is `kv_ownership` and, at both ends of the link, `transfers`.
"""

from __future__ import annotations

from typing import Final

from engine_under_test.caps import Caps
from engine_under_test.events import EventKind
from properties.invariants.predicate import Predicate, predicate, violation
from properties.moment import Happening, Moment
from properties.verdict import Violation


def transfers_hold_no_more_than_their_share(moment: Moment) -> Violation | None:
    """DI-5: where a transfer takes hold of blocks, all that transfers hold is at most the stated share of the pool; where it is
    a store behind a commit, at most the smaller share of stores.

    Source: docs/kv-transfers.md (a link that stands still must not keep requests out); vllm #21570 (a side that did not read
    kept the blocks of the other).
    """
    if not any(event.kind in _TAKES for event in moment.events):
        return None
    caps, held = moment.caps, len(set(moment.after.pinned))
    most, whose = (
        (caps.max_stored_blocks, "stores") if moment.happening is Happening.LANDED else (caps.max_held_blocks, "all transfers")
    )
    if held > most:
        return violation("DI-5", f"behind a hold of {whose}", f"{held} of {caps.num_blocks} blocks held", f"at most {most}")
    return None


def loads_leave_a_block_to_each_that_runs(moment: Moment) -> Violation | None:
    """DI-5: where a load has taken blocks from the free queue, there is one left for each choice that runs.

    Source: docs/kv-transfers.md (blocks of a hit are claimed leaving one to each sequence that runs), as in the watermark of
    vLLM's block manager (Kwon et al., SOSP 2023, section 4.5: running sequences would be preempted for the newcomer).
    """
    if not any(event.kind is EventKind.CLAIMED for event in moment.events):
        return None
    num_free, num_running = len(moment.after.free), len(moment.after.running)
    if num_free < num_running:
        found = f"{num_free} free blocks left to {num_running} choices that run"
        return violation("DI-5", "behind the claim of a load", found, "one for each of them at least")
    return None


def _states_shares(caps: Caps) -> bool:
    return caps.max_held_blocks > 0


_TAKES: Final = (EventKind.PINNED, EventKind.CLAIMED)

PREDICATES: Final[tuple[Predicate, ...]] = (
    predicate(
        "DI-5", transfers_hold_no_more_than_their_share, Happening.LANDED, Happening.POLLED, is_observable=_states_shares
    ),
    predicate("DI-5", loads_leave_a_block_to_each_that_runs, Happening.POLLED, is_observable=_states_shares),
)
