"""The one list of what must always hold: identifiers with their sentences.

Owns every identifier (none is ever used again for another meaning). Decides nothing: the predicates stand in the modules
beside this one, what must hold of a whole run stands in `properties.checkers`.

Terms: *block* = fixed-size physical page of KV; *slot* = one token's place in a block; *table* = a request's ordered list of
blocks; *reservation* = blocks taken for a plan that is not committed; *committed* = written and confirmed by the target
model; *quarantine* = released, but a use may not have ended; *ordered* = on the same stream, or behind an event wait.
"""

from __future__ import annotations

from typing import Final, NamedTuple


class Entry(NamedTuple):
    """An invariant: its identifier, its name, and the sentence that must hold."""

    identifier: str
    name: str
    statement: str


_ENTRIES: Final = (
    # KV ownership
    Entry(
        "KV-1",
        "conservation",
        "every physical block is in exactly one of: empty, cached (free, evictable), reserved, owned, "
        "quarantined; the counts add up to the pool (the padding block is none of them). A quarantined block may "
        "also be indexed, and a hit re-owns it",
    ),
    Entry(
        "KV-2",
        "reference truth",
        "the reference count of a block equals the number of live holders (tables, reservations, transfers, "
        "forks) that name it",
    ),
    Entry(
        "KV-3",
        "ordered writes",
        "two writes of one slot are ordered; a committed slot is never written again by its request's "
        "incarnation, and never at all while shared or indexed",
    ),
    Entry(
        "KV-4",
        "freed once",
        "a block enters the free queue once for each acquisition, when its count is 0 and its fence has passed",
    ),
    Entry(
        "KV-5",
        "lengths",
        "for each request, in slots: committed ≤ scheduled (committed plus plans in flight) ≤ allocated; visible "
        "− committed is 1 when idle and decoding, more only by what is in flight",
    ),
    Entry(
        "KV-6",
        "index holds committed only",
        "the prefix index names only full blocks whose every token is committed; never an unverified draft, never"
        " a block still being written, never the work of a dropped result",
    ),
    Entry(
        "KV-7",
        "index truth",
        "the key of an entry recomputed from its tokens, parent and extra keys is the key it stands under; a "
        "look-up returns blocks whose tokens equal the query's (also with a constant hash)",
    ),
    Entry(
        "KV-8",
        "namespaces",
        "no hit across model revision, adapter identity and version, tenant salt, or media (identity and its "
        "offset in the block); the encoding of the key is injective",
    ),
    Entry(
        "KV-9",
        "eviction",
        "only a block with count 0 and no pin is evicted; least recently used first; of one request's blocks the "
        "tail before the head",
    ),
    Entry(
        "KV-10",
        "lifetime",
        "every reuse of a block is ordered after every earlier use; where the user is the host or a remote, after"
        " its completion was seen",
    ),
    Entry(
        "KV-11",
        "copy on write",
        "a write into a shared, partly filled block first copies the filled part; the sibling's content does not change",
    ),
    Entry(
        "KV-12",
        "atomic",
        "reserve takes all or nothing; rollback restores exactly what was before reserve (free order and evicted "
        "entries included); abandon returns blocks empty behind the fence and takes every later plan in flight "
        "with it; commit does not fail",
    ),
    Entry("KV-13", "something to compute", "a hit is cut to ⌊(len − 1) / block⌋ blocks, also on resume"),
    Entry("KV-14", "padding block", "the padding block is never owned, cached, evicted or read as data"),
    Entry(
        "KV-15",
        "completeness",
        "the content of a committed full block stays hittable while any block holding it (and each of its "
        "ancestors) is neither evicted nor reset; no entry is unreachable because its parent is gone",
    ),
    Entry(
        "KV-16",
        "poison",
        "content that nobody should read (empty blocks, padding) does not change any output; nothing is written "
        "to a slot that no plan lists",
    ),
    # Scheduler
    Entry(
        "SC-1",
        "pairing",
        "a result is applied only to the plan that carries its identifier, request by request, in plan order",
    ),
    Entry("SC-2", "budgets", "tokens, sequences and active adapters of a plan each stay within their limit"),
    Entry(
        "SC-3",
        "planned once",
        "a request stands at most once in a plan, and its range starts at the epoch's scheduled length",
    ),
    Entry("SC-4", "lifecycle", "only legal transitions; a terminal state is final"),
    Entry(
        "SC-5",
        "one ending",
        "every accepted request gets exactly one terminal event for each choice (n > 1); token indices are "
        "contiguous, none repeated, none after the end",
    ),
    Entry(
        "SC-6",
        "abort",
        "after an abort is acknowledged no new plan names the request, and its blocks come back when the last use ends",
    ),
    Entry(
        "SC-7",
        "progress",
        "if some request could run alone with what is free, and nothing is in flight, the plan is not empty; with"
        " faults over, every request ends within a stated number of iterations, preemptions included; nobody "
        "emits fewer than one token in a stated number of iterations",
    ),
    Entry("SC-8", "no starvation", "no waiting request is overtaken more often than the policy's stated bound"),
    Entry(
        "SC-9",
        "preemption",
        "the victim is in the declared allowed set; it keeps its emitted tokens, and its continuation is the one "
        "it would have had",
    ),
    Entry(
        "SC-10",
        "chunks",
        "the chunks cover the uncached part of prompt plus emitted tokens with no gap and no overlap; only the "
        "last one samples",
    ),
    Entry(
        "SC-11",
        "quiescence",
        "with no live request: nothing owned, reserved, quarantined, in flight or pinned; all tables keyed by a "
        "request are empty",
    ),
    Entry(
        "SC-12",
        "stopping",
        "max_tokens, min_tokens, stop tokens and stop strings end the request exactly where the reference ends "
        "it; streamed text, token ids and held-back stop prefixes agree",
    ),
    Entry(
        "SC-13",
        "rows",
        "every per-row field, worker-side table and mask row is what the scheduler says for that request, after "
        "each add, finish, swap, condense, preempt, resume",
    ),
    Entry("SC-14", "metrics", "every counter and gauge equals a recount from the event log"),
    Entry(
        "SC-15",
        "deadlines",
        "a request past its deadline is ended with that reason within the stated time, never silently late",
    ),
    Entry("SC-16", "bounded output", "a slow or absent reader bounds its own buffers and nobody else's progress"),
    # Semantics
    Entry(
        "SE-1",
        "greedy equality",
        "teacher-forced on its own output, each greedy token is the reference's maximum or within the stated "
        "tolerance of it; with the fingerprint runner every cell is equal bit for bit",
    ),
    Entry(
        "SE-2",
        "seeded equality",
        "speculation off, fingerprint runner or batch-invariant mode: same seed and parameters give the same "
        "tokens whatever the batch, order, hits, chunks and preemptions",
    ),
    Entry("SE-3", "log-probabilities", "raw and processed log-probabilities equal the reference's within the stated tolerance"),
    Entry(
        "SE-4",
        "batch invariance",
        "in batch-invariant mode (fixed row tiles) the logits of a request are bitwise the same whatever shares "
        "its batch, a failing or NaN batch-mate included",
    ),
    Entry(
        "ST-1",
        "speculation is lossless",
        "the distribution of emitted tokens, jointly over positions, is the target model's; conditional on "
        "acceptance length, the enumerated law of (length, tokens)",
    ),
    Entry("ST-2", "sampler", "the sampled distribution is the processed softmax (temperature, min-p, top-k, top-p, penalties)"),
    Entry(
        "ST-3",
        "noise",
        "at most one draw at a noise address influences an emitted token; draws at different addresses are independent",
    ),
    # Asynchronous execution
    Entry("AS-1", "snapshots", "the host never changes a buffer that an operation in flight reads"),
    Entry("AS-2", "happens-before", "every read of a slot is ordered after the write that it needs"),
    Entry(
        "AS-3",
        "late events",
        "the result of an aborted, preempted or abandoned row is dropped: nothing emitted, published or leaked",
    ),
    Entry("AS-4", "identity", "a result of an older generation, incarnation or epoch is refused"),
    Entry("AS-5", "declarations", "what an operation touches is what it declared"),
    # Resources of a request
    Entry("RS-1", "adapters", "an adapter in use is resident, pinned and of the version that the request named; unload waits"),
    Entry(
        "RS-2",
        "grammar",
        "grammar state is the state after the committed tokens, on the right row, also after rollback, preemption"
        " and in the middle of an accepted run",
    ),
    # Distributed
    Entry(
        "DI-1",
        "agreement",
        "all ranks hold the same pool size and execute the same plans, rows and collectives in the same order; "
        "none is ahead by more than the pipeline depth",
    ),
    Entry(
        "DI-2",
        "rank death",
        "a dead or frozen rank is noticed within the stated time; each request in flight either continues with "
        "the same output or ends with an explicit error; nothing hangs, nothing ends twice",
    ),
    Entry(
        "DI-3",
        "transfer",
        "only KV that arrived whole, checked and committed, for this generation, becomes visible; a partial "
        "transfer falls back to computing; the source stays pinned until acknowledged or expired; a repeated "
        "transfer changes nothing",
    ),
    Entry("DI-4", "fallback equality", "output after a fallback equals output without the fault"),
    Entry("DI-5", "credits", "bytes in flight never exceed the credit; a slow peer slows its own transfers only"),
    # Long runs
    Entry("SK-1", "no orphans", "at every drain point no block, adapter, transfer, task, thread or file is left over"),
    Entry(
        "SK-2",
        "no growth",
        "the upper confidence bound of the slope of resident memory, device memory, threads and open files is "
        "under the stated rate after warm-up",
    ),
    Entry("SK-3", "identifiers", "no internal request, plan or transfer identifier is used twice"),
    Entry(
        "SK-4",
        "tail",
        "the p99 of the last window is within the stated ratio of the first window after warm-up, at equal load",
    ),
)

CATALOGUE: Final[dict[str, Entry]] = {entry.identifier: entry for entry in _ENTRIES}

MOST_DANGEROUS: Final[dict[str, tuple[str, ...]]] = {
    "plan and result are strictly paired, request by request": ("SC-1", "AS-4"),
    "no physical state is released before its last use, and it is released once": ("KV-4", "KV-10"),
    "only what the target model confirmed is visible downstream or to the cache": ("KV-6", "ST-1"),
}
"""The three most dangerous invariants, with the identifiers that stand for each. None of them may go unproven by a mutant."""


def is_most_dangerous(identifier: str) -> bool:
    return any(identifier in identifiers for identifiers in MOST_DANGEROUS.values())
