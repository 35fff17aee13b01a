"""Each predicate lets the valid moments pass and finds the one thing that is wrong in a moment that differs in one column."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any, NamedTuple

import pytest

from engine_under_test.caps import Caps, DeclaredOrder, ReferenceModel, VictimSet
from engine_under_test.events import Event, EventKind, Misdeclared, Race, RaceKind
from engine_under_test.types import Adapter, FinishReason, Output, PrefixEntry, RowId, Status
from properties.invariants import ALL, CATALOGUE, MOST_DANGEROUS, Panel, Predicate
from properties.invariants.example_moments import GOOD
from properties.invariants.examples import B_CONTENTS, B_ENTRIES, C_ENTRIES, CAPS, FOREIGN, changed
from properties.moment import Moment, NoiseAddress
from properties.verdict import Violation

REQUIRED = (
    *(f"KV-{number}" for number in range(1, 17)),
    *(f"SC-{number}" for number in range(1, 13)),
    *("SC-13", "SC-14", "SC-15", "SE-1", "SE-2", "ST-1", "ST-3", "RS-1", "AS-1", "AS-2", "AS-3", "AS-4", "AS-5"),
)


class Bad(NamedTuple):
    """A good moment with one thing changed, and the predicate that must see it."""

    predicate: str
    claim: str
    good: str
    path: tuple[Any, ...]
    new: Any


_B_ROW, _OLD_A = RowId("b", 0, 1, 0), RowId("a", 0, 1, 0)
_AFTER, _PLAN, _RES = ("after",), ("planned", "plan"), ("planned", "reservation")
_RUN = (*_AFTER, "running")

_STREAMS = "landed on streams"
_TUNED, _UNLOADED = "planned with adapters", "an adapter unloaded"
_NOBODY_COPIES = ((1, 2, 3), (4, 5), (4, 5), (12, 11, 8))


def _without(*keys: Any) -> Any:
    return lambda mapping: {key: value for key, value in mapping.items() if key not in keys}


def _with_media(entry: PrefixEntry) -> PrefixEntry:
    return PrefixEntry(entry.key, entry.namespace, entry.parent, entry.tokens, (("cat", 0, 1),))


def _of_age(known: Any) -> Any:
    """The urgent one that waits came first, and is of age."""
    urgent = ("u", 0, 2)
    return replace(known, first=frozenset({urgent}), choices={urgent: known.choices[urgent], **known.choices})


_LOST = tuple((name, choice, 1) for name in "acbxy" for choice in (0, 1))
_THREE_SLOTS = (Adapter("lora", 1), Adapter("lora", 2), None)

BAD = (
    # kv_ownership
    Bad("blocks_are_conserved", "a block that is nowhere is lost", "polled", (*_AFTER, "free"), (5,)),
    Bad("blocks_are_conserved", "a block is both free and quarantined", "polled", (*_AFTER, "quarantined"), {7: 3}),
    Bad("blocks_are_conserved", "a cached page is lost from the tree", "a radix tree", (*_AFTER, "cached"), _without(11)),
    Bad("blocks_are_conserved", "a block is not of this pool", "polled", (*_AFTER, "free"), (5, 7, 13)),
    Bad("reference_counts_are_true", "a count is one too high", "planned", (*_AFTER, "ref_counts", 9), 2),
    Bad("reference_counts_are_true", "a count is one too low", "landed", (*_AFTER, "ref_counts", 4), 1),
    Bad("blocks_are_freed_once", "a block stands in the queue twice", "polled", (*_AFTER, "free"), (5, 7, 5)),
    Bad("freed_blocks_have_no_holder", "an owned block is free", "polled", (*_AFTER, "free"), (5, 7, 3)),
    Bad("freed_blocks_have_no_holder", "a freed block is counted", "polled", (*_AFTER, "ref_counts", 5), 1),
    Bad("freed_blocks_are_behind_their_fence", "plan 5 has not settled", "polled", (*_AFTER, "unsettled"), (5,)),
    Bad(
        "each_acquisition_is_freed_once",
        "one release is told twice",
        "polled",
        ("events",),
        lambda events: (*events, events[-1]),
    ),
    Bad("padding_belongs_to_nobody", "a table owns it", "polled", (*_RUN, 0, "table", 0), 0),
    Bad("padding_belongs_to_nobody", "it is free", "polled", (*_AFTER, "free"), lambda free: (*free, 0)),
    Bad("padding_belongs_to_nobody", "it is quarantined", "polled", (*_AFTER, "quarantined"), {0: 5}),
    Bad("padding_is_never_planned", "a table names it", "planned", (*_RES, "tables", 0, 0), 0),
    Bad("padding_is_never_planned", "a slot of it is written", "planned", (*_RES, "slots", 0), 2),
    Bad("padding_is_never_planned", "a hit names it", "planned", (*_PLAN, "hit_blocks", 0), (0,)),
    Bad("padding_is_never_planned", "it is filled", "planned", (*_RES, "fills"), (0,)),
    # kv_writes
    Bad("writes_of_a_slot_are_ordered", "two rows write one slot", "planned", (*_RES, "slots", 1), 43),
    Bad("writes_of_a_slot_are_ordered", "plan 3 still writes it", "planned", ("writes", 3), frozenset({39})),
    Bad("committed_slots_are_never_rewritten", "a row starts too early", "planned", (*_PLAN, "starts", 0), 9),
    Bad("committed_slots_are_never_rewritten", "the block is indexed", "planned", (*_RES, "slots", 0), 8),
    Bad("taken_blocks_have_no_holder", "a is still its owner", "planned", (*_RES, "new_blocks", 1), (3,)),
    Bad("taken_blocks_have_no_holder", "two rows take it", "planned", (*_RES, "new_blocks", 1), (10,)),
    Bad("taken_blocks_are_behind_every_use", "plan 3 still uses it", "planned", ("uses", 3), frozenset({8})),
    Bad("quarantine_waits_for_the_last_use", "it waits for plan 3 only", "landed", (*_AFTER, "quarantined", 5), 3),
    Bad("shared_blocks_are_copied_on_write", "nothing is copied", "planned", (*_RES, "copies"), lambda c: c[1:]),
    Bad("shared_blocks_are_copied_on_write", "too little is copied", "planned", (*_RES, "copies", 0, "num_slots"), 2),
    Bad("shared_blocks_are_copied_on_write", "the shared block is written", "planned", (*_RES, "tables"), _NOBODY_COPIES),
    Bad("only_listed_slots_are_written", "a slot of block 6", "landed", ("execution", "changed_slots"), lambda s: s | {24}),
    Bad("new_blocks_hold_poison", "old content is left", "landed", ("execution", "stale_slots"), frozenset({33})),
    Bad("only_listed_slots_are_written", "the padding", "landed", ("execution", "changed_slots"), lambda s: s | {0}),
    # kv_index
    Bad("nothing_from_before_a_reset_is_found", "block 9 is from before it", "landed", ("facts", "outdated"), frozenset({9})),
    Bad(
        "index_names_committed_blocks_only",
        "the block is still being written",
        "landed",
        (*_AFTER, "cached", 8),
        B_ENTRIES[0],
    ),
    Bad(
        "index_names_committed_blocks_only",
        "a token was never committed",
        "landed",
        (*_AFTER, "cached", 9),
        PrefixEntry(b"k", b"ns", None, (1, 1, 1, 1)),
    ),
    Bad(
        "index_names_committed_blocks_only",
        "the block is not full",
        "landed",
        (*_AFTER, "cached", 9),
        PrefixEntry(b"k", b"ns", None, (1, 1, 1)),
    ),
    Bad("entries_name_the_media_of_their_block", "an item more", "landed", (*_AFTER, "cached", 9), _with_media),
    Bad("entries_stand_under_their_true_key", "another key", "landed", ("facts", "keys", C_ENTRIES[1]), b"other"),
    Bad("entries_name_what_their_block_holds", "another content", "landed", (*_AFTER, "cached", 9), B_ENTRIES[0]),
    Bad("hits_hold_the_query", "the blocks come in another order", "planned", (*_PLAN, "hit_blocks", 3), (11, 12)),
    Bad("hits_hold_the_query", "nothing was committed there", "planned", (*_PLAN, "hit_blocks", 3), (12, 8)),
    Bad(
        "hits_stay_in_their_namespace",
        "equal tokens of another tenant",
        "planned",
        ("facts", "content_by_block", 12),
        FOREIGN,
    ),
    Bad("hits_stay_in_their_namespace", "no such content is its own", "planned", ("facts", "chains", "b"), ()),
    Bad("hits_leave_something_to_compute", "the whole prompt is hit", "planned", (*_RUN, 3, "visible_len"), 8),
    Bad("hits_leave_something_to_compute", "a gap behind the hit", "planned", (*_PLAN, "starts", 3), 7),
    Bad("committed_content_stays_hittable", "a block fell out", "landed", (*_AFTER, "cached"), _without(9)),
    Bad("committed_content_stays_hittable", "one never came in", "landed", ("facts", "hittable", 8), B_CONTENTS[0]),
    Bad("parents_of_entries_stay", "the head is gone, the tail is not", "landed", (*_AFTER, "cached"), _without(4)),
    # kv_eviction
    Bad("evicted_blocks_are_idle", "a owns it", "evicting", (*_RES, "evicted"), (1,)),
    Bad("evicted_blocks_are_idle", "the plan hits it", "planned", (*_RES, "evicted"), (11,)),
    Bad("least_recently_used_goes_first", "block 12 was free longer", "evicting", ("before", "free"), (12, 11)),
    Bad("least_recently_used_goes_first", "block 12 was let go earlier", "on demand", ("facts", "releases", 12), 2),
    Bad("released_blocks_queue_behind", "ahead of block 1, free before", "aborted", ("before", "free"), (5, 7, 1)),
    Bad("tails_go_before_heads", "the head stands first", "aborted", (*_AFTER, "free"), (3, 5, 7, 1, 2)),
    # kv_transaction
    Bad("reserve_takes_all", "a table is too short", "planned", (*_RES, "tables", 3), (12, 11)),
    Bad("reserve_takes_all", "a slot is not where the table says", "planned", (*_RES, "slots", 0), 15),
    Bad("reserve_takes_all", "a block is held by nobody", "planned", (*_AFTER, "reservations", 5), (9, 12, 11, 8)),
    Bad("rollback_restores_everything", "the free order is another", "rolled back", (*_AFTER, "free"), (9, 8, 10, 11, 12)),
    Bad("rollback_restores_everything", "an evicted entry is gone", "rolled back", (*_AFTER, "cached"), _without(11)),
    Bad(
        "rollback_restores_everything",
        "an entry came back as another",
        "rolled back",
        (*_AFTER, "cached", 11),
        PrefixEntry(b"x", b"ns", B_ENTRIES[0], B_ENTRIES[1].tokens),
    ),
    Bad("nothing_planned_leaves_no_trace", "a hit kept its count", "nothing planned", (*_AFTER, "ref_counts", 1), 2),
    Bad("abandon_returns_blocks_empty", "a later plan goes on", "abandoned", (*_AFTER, "plans"), (6,)),
    Bad("abandon_returns_blocks_empty", "a new block is cached", "abandoned", (*_AFTER, "cached", 9), C_ENTRIES[0]),
    Bad("abandon_returns_blocks_empty", "a new block is owned", "abandoned", (*_RUN, 0, "table"), (1, 2, 3, 9)),
    Bad("abandon_returns_blocks_empty", "its reservation stays", "abandoned", (*_AFTER, "reservations"), {5: (9,)}),
    Bad("commit_applies_the_whole_plan", "a row stands still", "landed", (*_RUN, 0, "committed_len"), 10),
    Bad("commit_applies_the_whole_plan", "the plan stays in flight", "landed", (*_AFTER, "plans"), (5,)),
    Bad("lengths_are_ordered", "more committed than scheduled", "planned", (*_RUN, 0, "committed_len"), 12),
    Bad("lengths_are_ordered", "more allocated than its blocks hold", "planned", (*_RUN, 0, "allocated_len"), 13),
    Bad("lengths_are_ordered", "idle with something scheduled", "landed", (*_RUN, 0, "scheduled_len"), 12),
    Bad("lengths_are_ordered", "the newest token is committed", "landed", (*_RUN, 0, "visible_len"), 11),
    Bad("decoding_lags_by_one", "the sampled token is not visible", "landed", (*_RUN, 0, "visible_len"), 14),
    # results
    Bad("results_are_applied_in_plan_order", "plan 5 is passed over", "landed", (*_AFTER, "plans"), (5,)),
    Bad("results_move_their_own_rows_only", "two rows are swapped", "landed", (*_RUN, 1, "visible_len"), 10),
    Bad("results_move_their_own_rows_only", "somebody else moves", "late", (*_AFTER, "waiting", 0, "visible_len"), 10),
    Bad(
        "results_move_their_own_rows_only",
        "a row of the plan is as it was",
        "landed",
        (*_RUN, 0),
        GOOD["landed"].before.running[0],
    ),
    Bad("outputs_are_the_tokens_of_their_rows", "another row's token", "delivered", ("outputs", 0, "token_ids"), (50,)),
    Bad("outputs_are_the_tokens_of_their_rows", "nobody's news", "delivered", ("outputs", 0, "incarnation"), 2),
    Bad("late_rows_are_dropped", "its token is emitted", "late", ("events", 0, "kind"), EventKind.EMITTED),
    Bad("late_rows_are_dropped", "its choice moves", "late", (*_AFTER, "waiting", 0, "visible_len"), 10),
    Bad("older_lives_are_refused", "the next life moves", "reborn", (*_AFTER, "waiting", 0, "visible_len"), 10),
    Bad("older_lives_are_refused", "the next life ends", "reborn", (*_AFTER, "waiting"), ()),
    Bad("stale_results_change_nothing", "a row moves", "stale", (*_RUN, 0, "visible_len"), 13),
    Bad("stale_results_change_nothing", "it is published", "stale", ("events", 0, "kind"), EventKind.PUBLISHED),
    # semantics
    Bad("cells_are_lawful", "one bit differs", "landed", ("execution", "cells"), lambda cells: cells ^ (cells == 7)),
    Bad("cells_are_lawful", "a cell is missing", "landed", ("execution", "cells"), lambda cells: cells[:-1]),
    Bad("greedy_tokens_are_lawful", "a takes another token", "landed", ("execution", "lawful", "tokens", 0), (13,)),
    Bad("seeded_tokens_are_lawful", "b takes another token", "landed", ("execution", "lawful", "tokens", 3), (13,)),
    Bad(
        "draws_stand_at_their_own_addresses",
        "one position too early",
        "landed",
        ("execution", "addresses", 2),
        NoiseAddress(7, 0, 8, 0),
    ),
    Bad(
        "draws_stand_at_their_own_addresses",
        "one address is drawn from twice",
        "landed",
        ("execution", "addresses"),
        lambda addresses: (*addresses, addresses[0]),
    ),
    # scheduler_life
    Bad("transitions_are_legal", "back to waiting without a new epoch", "polled", (*_RUN, 0, "status"), Status.WAITING),
    Bad("transitions_are_legal", "an epoch falls", "preempting", ("before", "running", 0, "epoch"), 1),
    Bad(
        "ended_choices_stay_ended",
        "it has ended",
        "polled",
        ("facts", "choices", ("a", 0, 1), "finish_reason"),
        FinishReason.ABORT,
    ),
    Bad("outputs_are_contiguous", "an index is left out", "delivered", ("outputs", 2, "index"), 2),
    Bad(
        "outputs_are_contiguous",
        "news behind the end",
        "delivered",
        ("outputs", 1, "finish_reason"),
        FinishReason.STOP,
    ),
    Bad(
        "nobody_vanishes_without_an_end",
        "the target has forgotten it",
        "drained",
        ("facts", "choices"),
        lambda _none: GOOD["planned"].facts.live(),
    ),
    Bad(
        "aborted_requests_are_not_planned",
        "its abort was acknowledged",
        "planned",
        ("facts", "choices", ("a", 0, 1), "finish_reason"),
        FinishReason.ABORT,
    ),
    Bad("aborted_requests_are_not_planned", "it was never accepted", "planned", ("facts", "choices"), _without(("b", 0, 1))),
    Bad("aborted_requests_leave_at_once", "it goes on", "aborted", _AFTER, GOOD["aborted"].before),
    Bad("quarantine_ends_with_its_fence", "plan 3 has settled", "polled", (*_AFTER, "quarantined"), {7: 3}),
    Bad("a_drained_target_holds_nothing", "a block is pinned", "drained", (*_AFTER, "pinned"), (6,)),
    Bad("a_drained_target_holds_nothing", "a count is left", "drained", (*_AFTER, "ref_counts", 6), 1),
    Bad("a_drained_target_holds_nothing", "a plan is unsettled", "drained", (*_AFTER, "unsettled"), (5,)),
    Bad("choices_end_where_they_should", "one token too many", "delivered", ("outputs", 3, "token_ids"), (30,) * 9),
    Bad("choices_end_where_they_should", "max_tokens reached, no end", "delivered", ("outputs", 3, "finish_reason"), None),
    Bad("choices_end_where_they_should", "a stop token, no end", "delivered", ("outputs", 2, "finish_reason"), None),
    Bad("choices_end_where_they_should", "an end by stop without one", "delivered", ("outputs", 2, "token_ids"), (31, 62)),
    Bad("choices_end_where_they_should", "tokens behind a stop", "delivered", ("outputs", 2, "token_ids"), (63, 31)),
    Bad(
        "choices_end_where_they_should",
        "a stop before min_tokens",
        "delivered",
        ("facts", "choices", ("d", 0, 1), "request", "sampling", "min_tokens"),
        3,
    ),
    Bad(
        "choices_end_where_they_should",
        "an end by length before max_tokens",
        "delivered",
        ("outputs", 3, "token_ids"),
        (30,) * 7,
    ),
    Bad("counters_equal_a_recount", "one token more", "landed", ("counters", "scheduled_tokens"), 5),
    Bad("counters_equal_a_recount", "an end is not counted", "landed", ("counters", "finished"), {}),
    Bad("tables_equal_a_recount", "a block that nobody was told of", "landed", ("told_tables", RowId("b", 0, 1, 0)), (12, 11)),
    Bad("deadlines_are_kept", "it lives on", "planned", ("facts", "late"), {("c", 0, 1): 2}),
    Bad("deadline_ends_are_due", "it has not passed", "delivered", ("facts", "time"), 8.0),
    Bad(
        "deadline_ends_are_due",
        "there is none",
        "delivered",
        ("facts", "choices", ("f", 0, 1), "request", "deadline_s"),
        None,
    ),
    # scheduler_plan
    Bad("budgets_are_kept", "too many tokens", "planned", ("caps", "max_tokens_per_step"), 3),
    Bad("budgets_are_kept", "too many rows", "planned", ("caps", "max_num_seqs"), 3),
    Bad(
        "budgets_are_kept",
        "two adapters at once",
        "planned",
        (*_PLAN, "requests"),
        lambda requests: (
            replace(requests[0], adapter=Adapter("lora", 1)),
            *requests[1:3],
            replace(requests[3], adapter=Adapter("lora", 2)),
        ),
    ),
    Bad("rows_are_planned_once", "choice 0 of c twice", "planned", (*_PLAN, "choices", 2), 0),
    Bad("rows_start_where_they_were_scheduled_to", "a gap", "planned", (*_PLAN, "starts", 0), 11),
    Bad("rows_start_where_they_were_scheduled_to", "not behind the hit", "planned", (*_PLAN, "starts", 3), 4),
    Bad("rows_start_where_they_were_scheduled_to", "scheduled beyond", "planned", (*_RUN, 0, "scheduled_len"), 12),
    Bad("chunks_cover_prompt_and_output", "the last row does not sample", "planned", (*_PLAN, "samples", 0), False),
    Bad("chunks_cover_prompt_and_output", "a chunk within samples", "planned", (*_RUN, 0, "visible_len"), 12),
    Bad("chunks_cover_prompt_and_output", "another token is fed", "planned", (*_PLAN, "token_ids", 0), 12),
    Bad("chunks_cover_prompt_and_output", "a prompt token is wrong", "planned", (*_PLAN, "token_ids", 3), 27),
    Bad("chunks_cover_prompt_and_output", "a token too many", "planned", (*_PLAN, "token_ids"), lambda t: (*t, 1)),
    Bad("chunks_cover_prompt_and_output", "no token is in flight", "planned", (*_PLAN, "num_pending", 0), 1),
    Bad("plans_are_not_empty_without_reason", "blocks are free", "nothing planned", (*_AFTER, "free"), (8, 9, 10, 11, 12)),
    Bad("everybody_gets_tokens", "six plans without one", "planned", ("facts", "idle"), {("a", 0, 1): 6}),
    Bad("everything_ends", "b still waits", "drained", (*_AFTER, "waiting"), lambda _none: GOOD["planned"].before.waiting),
    Bad(
        "loads_are_given_up_in_time", "b waits on", "polled before a remote pool", ("facts", "loads"), {RowId("b", 0, 1, 0): 99}
    ),
    Bad("nobody_is_overtaken_too_often", "b is passed over", "planned", ("facts", "overtakes"), {("b", 0, 1): 1}),
    Bad("victims_are_allowed", "nobody may be preempted", "preempting", ("caps", "victims"), VictimSet.NONE),
    Bad(
        "victims_are_allowed",
        "c/0 came later and was kept",
        "preempting",
        ("facts", "choices"),
        lambda choices: {key: choices[key] for key in (("c", 1, 1), ("a", 0, 1), ("c", 0, 1), ("b", 0, 1))},
    ),
    Bad("victims_are_allowed", "nobody was kept", "preempting", (*_AFTER, "running"), ()),
    Bad(
        "victims_are_allowed",
        "a is less urgent and was kept",
        "preempting",
        (),
        lambda moment: changed(
            changed(moment, ("caps", "order"), DeclaredOrder.PRIORITY),
            ("facts", "choices", ("a", 0, 1), "request", "priority"),
            1,
        ),
    ),
    Bad("victims_keep_their_tokens", "a token is lost", "preempting", ("before", "running", 2, "visible_len"), 9),
    Bad("victims_keep_their_tokens", "it keeps a block", "preempting", (*_AFTER, "waiting", 0, "table"), (4,)),
    Bad("preemptions_lead_somewhere", "once more than stated", "preempting", ("facts", "in_a_row"), {("c", 1, 1): 3}),
    Bad("running_choices_have_seats", "one more than there are seats", "planned", ("caps", "max_num_seqs"), 3),
    Bad("nobody_is_preempted_needlessly", "blocks are coming", "preempting", ("before", "quarantined"), {7: 3, 8: 3, 9: 3}),
    Bad(
        "victims_return_when_their_plans_have_landed",
        "its older plan is in flight",
        "resumed",
        ("in_flight",),
        lambda _none: (GOOD["planned"].planned,),
    ),
    Bad("the_declared_order_is_kept", "the more urgent one waits on", "by priority", ("facts", "aged"), frozenset()),
    Bad("who_came_of_age_stays_first", "the urgent one is of age", "by priority", ("facts",), _of_age),
    Bad(
        "what_victims_gave_up_is_for_those_who_run",
        "c/0 enters",
        "preempting",
        ("before", "running"),
        lambda rows: (rows[0], rows[2]),
    ),
    Bad("beginnings_take_what_can_be_found", "b finds one block", "planned", (*_PLAN, "hit_blocks", 3), (12,)),
    Bad(
        "a_lost_plan_is_tried_again_by_half",
        "all of it is",
        "planned",
        ("facts", "retried"),
        (("a", 0, 1), ("c", 0, 1), ("c", 1, 1), ("b", 0, 1)),
    ),
    Bad("a_lost_plan_is_tried_again_by_half", "others come along", "planned", ("facts", "retried"), (("a", 0, 1),)),
    Bad("requests_lost_twice_end", "a goes on", "abandoned", ("facts", "lost_twice"), frozenset({("a", 0, 1)})),
    Bad("errors_say_why", "it says nothing", "delivered", ("outputs", 4, "finish_reason"), FinishReason.ERROR),
    Bad(
        "blocks_are_published_once",
        "a block of the index is published",
        "landed",
        ("events",),
        (Event(EventKind.PUBLISHED, _B_ROW, 5, (12,)),),
    ),
    # device_order
    Bad(
        "buffers_keep_still_while_they_are_read",
        "the host writes what is being uploaded",
        _STREAMS,
        ("races",),
        (Race(RaceKind.WRITE_AFTER_READ, "pinned inputs", 0, "upload of plan 5", "copy_in", "host", "host"),),
    ),
    Bad(
        "reads_follow_the_writes_they_need",
        "rows do not wait for a copy",
        _STREAMS,
        ("races",),
        (Race(RaceKind.READ_AFTER_WRITE, "kv", 9, "copy of plan 5", "copy_in", "rows of plan 5", "compute"),),
    ),
    Bad(
        "writes_of_a_page_are_ordered",
        "a fill does not wait for rows",
        _STREAMS,
        ("races",),
        (Race(RaceKind.WRITE_AFTER_WRITE, "kv", 9, "rows of plan 4", "compute", "fill of plan 5", "copy_in"),),
    ),
    Bad(
        "reuse_follows_every_use",
        "a fill does not wait for a store",
        _STREAMS,
        ("races",),
        (Race(RaceKind.WRITE_AFTER_READ, "kv", 9, "store", "transfer", "fill of plan 5", "copy_in"),),
    ),
    Bad(
        "operations_touch_what_they_declared",
        "a block is read that was not declared",
        _STREAMS,
        ("misdeclared",),
        (Misdeclared("rows of plan 5", "read", "kv", (9,)),),
    ),
    # adapters
    Bad("rows_read_the_adapter_that_they_name", "b reads c's slot", _TUNED, (*_RES, "adapter_slots", 3), 1),
    Bad("rows_read_the_adapter_that_they_name", "b reads none", _TUNED, (*_RES, "adapter_slots", 3), 0),
    Bad("rows_read_the_adapter_that_they_name", "a reads one", _TUNED, (*_RES, "adapter_slots", 0), 1),
    Bad("rows_read_the_adapter_that_they_name", "nothing is loaded for b", _TUNED, (*_RES, "adapter_loads"), ()),
    Bad("rows_read_the_adapter_that_they_name", "no row has a slot", _TUNED, (*_RES, "adapter_slots"), ()),
    Bad("slots_in_use_are_not_overwritten", "plan 4 reads it", _TUNED, ("facts", "adapters", "in_flight", 4), frozenset({2})),
    Bad("the_least_recently_used_slot_is_given_up", "slot 3 is empty", _TUNED, ("before", "adapter_slots"), _THREE_SLOTS),
    Bad("adapters_of_running_choices_are_resident", "slot 2 is shown empty-handed", _TUNED, (*_RES, "adapter_loads"), ()),
    Bad(
        "adapters_of_running_choices_are_resident",
        "a runs without its own",
        _TUNED,
        ("facts", "choices", ("a", 0, 1), "request", "adapter"),
        Adapter("lora", 3),
    ),
    Bad("adapters_in_use_are_kept", "c still uses it", _UNLOADED, (*_AFTER, "adapters"), (Adapter("lora", 2),)),
    Bad("adapters_in_use_are_kept", "nobody uses it", _UNLOADED, (*_AFTER, "adapters"), lambda a: (*a, Adapter("lora", 0))),
    Bad(
        "a_rollback_restores_the_slots",
        "the load stays",
        "rolled back with adapters",
        (*_AFTER, "adapter_slots", 1),
        Adapter("lora", 2),
    ),
    Bad("nobody_waits_too_long_for_a_slot", "b is passed over", _TUNED, ("facts", "adapters", "overtaken"), {("b", 0, 1): 3}),
    # holding
    Bad("transfers_hold_no_more_than_their_share", "only two are stated", "a load begins", ("caps", "max_held_blocks"), 2),
    Bad("transfers_hold_no_more_than_their_share", "only two for stores", "a store begins", ("caps", "max_stored_blocks"), 2),
    Bad("loads_leave_a_block_to_each_that_runs", "one is free", "a load begins", (*_AFTER, "free"), (5,)),
    # drafts
    Bad("drafts_change_no_token", "a draft that should fall stands", "verified", ("execution", "lawful", "tokens", 0), (40,)),
    Bad("drafts_stay_within_their_width", "three, two are stated", "with drafts", (*_PLAN, "num_drafts", 0), 3),
    Bad("drafts_stay_within_their_width", "none is known before them", "with drafts", (*_PLAN, "num_drafts", 0), 2),
    Bad("drafts_stay_within_their_width", "the row does not sample", "with drafts", (*_PLAN, "samples", 0), False),
    Bad("drafts_reach_no_further_than_the_choice", "it starts near its end", "with drafts", (*_PLAN, "starts", 0), 15),
    Bad("fallen_drafts_keep_no_block", "a block of look-ahead is left", "verified", (*_RUN, 0, "allocated_len"), 16),
    Bad("fallen_drafts_keep_no_block", "a draft counted as confirmed", "verified", (*_RUN, 0, "committed_len"), 13),
    Bad("drafts_take_no_block_that_others_want", "the draft crosses into one", "with drafts", (*_PLAN, "starts", 0), 11),
    Bad("a_second_try_has_no_drafts", "all were lost", "with drafts", ("facts", "retried"), _LOST),
    Bad("proposers_keep_what_stands", "a row of nobody", "with drafts", ("kept_drafts",), {RowId("a", 0, 1, 3): 9}),
    Bad("proposers_keep_what_stands", "it was not told", "with drafts", ("strange_drafts",), ("it keeps [1, 2]",)),
    Bad("results_move_their_own_rows_only", "a fallen draft is committed", "verified", (*_RUN, 0, "committed_len"), 13),
    Bad("results_move_their_own_rows_only", "a token is left out", "verified", (*_RUN, 0, "visible_len"), 12),
    Bad("chunks_cover_prompt_and_output", "another token before the drafts", "with drafts", (*_PLAN, "token_ids", 0), 12),
    Bad("draws_stand_at_their_own_addresses", "one more", "verified", ("execution", "addresses"), lambda a: (*a, a[0])),
    Bad("declared_victims_were_preempted", "a goes on", "preempting", ("planned", "preempted"), (_OLD_A,)),
)
_BY_NAME = {predicate.check.__name__: predicate for predicate in ALL}


def _bad(case: Bad) -> Moment:
    moment: Moment = changed(GOOD[case.good], case.path, case.new)
    return moment


def _found(predicate: Predicate, moment: Moment) -> Violation | None:
    assert predicate.applies(moment), "the moment has nothing that the predicate looks at"
    return predicate.check(moment)


@pytest.mark.parametrize("case", BAD, ids=lambda case: f"{case.predicate.replace('_', ' ')} - {case.claim}")
def test_a_moment_that_is_wrong_in_one_column_is_found(case: Bad) -> None:
    predicate = _BY_NAME[case.predicate]
    found = _found(predicate, _bad(case))
    assert found is not None
    assert (found.invariant, found.name) == (predicate.identifier, CATALOGUE[predicate.identifier].name)
    assert found.found
    assert found.expected
    assert found.found != found.expected


@pytest.mark.parametrize("case", BAD, ids=lambda case: f"{case.predicate.replace('_', ' ')} - not that {case.claim}")
def test_the_moment_it_was_changed_from_passes(case: Bad) -> None:
    assert _BY_NAME[case.predicate].check(GOOD[case.good]) is None


@pytest.mark.parametrize("predicate", [p for p in ALL if p.only_with], ids=lambda p: p.sentence)
def test_where_its_evidence_is_missing_nothing_is_found(predicate: Predicate) -> None:
    unasked = replace(predicate, only_with=())
    moments = [*GOOD.values(), *map(_bad, BAD), changed(GOOD["planned"], ("facts", "owed_hits"), {})]
    moments.append(changed(GOOD["delivered"], ("outputs",), lambda outputs: outputs[:1]))
    silent = [moment for moment in moments if unasked.applies(moment) and not predicate.applies(moment)]
    assert silent, "the evidence is there in every example: it says nothing"
    assert [found for moment in silent if (found := predicate.check(moment)) is not None] == []


@pytest.mark.parametrize("name", GOOD)
@pytest.mark.parametrize("is_audit", [False, True], ids=["what was touched", "everything"])
def test_a_valid_moment_passes_every_predicate(name: str, is_audit: bool) -> None:
    moment = replace(GOOD[name], is_audit=is_audit)
    assert [found.sentence for p in ALL if p.applies(moment) and (found := p.check(moment)) is not None] == []


def test_every_predicate_has_a_good_and_a_bad_case() -> None:
    assert {case.predicate for case in BAD} == set(_BY_NAME)


def test_every_required_invariant_has_a_predicate() -> None:
    assert set(REQUIRED) - {predicate.identifier for predicate in ALL} == set()


def test_every_predicate_belongs_to_the_catalogue_and_names_its_source() -> None:
    for predicate in ALL:
        entry = CATALOGUE[predicate.identifier]
        assert (predicate.name, predicate.statement) == (entry.name, entry.statement)
        assert predicate.source
        assert (predicate.check.__doc__ or "").startswith(f"{predicate.identifier}: ")


def test_predicates_have_names_of_their_own() -> None:
    assert len(_BY_NAME) == len(ALL)


def test_the_three_most_dangerous_invariants_are_judged() -> None:
    judged = {predicate.identifier for predicate in ALL}
    assert len(MOST_DANGEROUS) == 3
    assert {name for names in MOST_DANGEROUS.values() for name in names} - judged == set()


PLAIN = Caps("plain", 1, 12, 8, 4, 64, 5, 0, reference_model=ReferenceModel.PATH_LOCK, has_prefix_cache=False)


def test_a_target_that_shows_less_is_not_observable_there() -> None:
    panel = Panel(PLAIN, ALL)
    expected = {
        "KV-2",
        "KV-6",
        "KV-7",
        "KV-8",
        "KV-9",
        "KV-11",
        "KV-13",
        "KV-15",
        "SC-13",
        "SC-14",
        "SC-15",
        "RS-1",
        "ST-1",
        "DI-5",
    }
    assert set(panel.not_observable) == expected


def test_a_target_with_everything_is_observable_everywhere() -> None:
    assert Panel(CAPS, ALL).not_observable == ()


def test_a_target_without_counts_is_not_counted_as_judged() -> None:
    moment = changed(GOOD["planned"], ("after", "ref_counts"), None)
    evaluations: Counter[str] = Counter()
    assert Panel(CAPS, ALL).judge(moment, evaluations) is None
    assert evaluations["KV-2"] == 0
    assert evaluations["KV-1"] == 1


def test_the_panel_stops_at_the_first_violation_and_counts_what_it_asked() -> None:
    moment = changed(GOOD["polled"], ("after", "free"), (5, 7, 5))
    evaluations: Counter[str] = Counter()
    found = Panel(CAPS, ALL).judge(moment, evaluations)
    assert found is not None
    assert found.invariant == "KV-4"
    assert evaluations["KV-4"] >= 1
    assert evaluations["SC-4"] == 0, "judged later than KV-4"


def test_a_relaunch_may_write_again_where_its_abandoned_plan_wrote() -> None:
    moment = changed(GOOD["planned"], ("writes", 3), frozenset({14}))
    assert _BY_NAME["writes_of_a_slot_are_ordered"].check(moment) is None


def test_a_last_sharer_may_write_in_place_once_the_others_copy() -> None:
    moment = changed(GOOD["planned"], ("planned", "reservation", "tables", 1), (4, 5))
    copies = changed(moment, ("planned", "reservation", "copies"), lambda found: found[1:])
    assert _BY_NAME["shared_blocks_are_copied_on_write"].check(copies) is None


def test_who_tries_a_lost_plan_again_goes_before_those_who_came_since() -> None:
    check = _BY_NAME["the_declared_order_is_kept"].check
    late = changed(GOOD["by priority"], ("facts", "aged"), frozenset())
    found = check(late)
    assert found is not None
    entered = {s[:3] for s in late.before.waiting} - {s[:3] for s in late.after.waiting}
    assert check(changed(late, ("facts", "retried"), tuple(entered))) is None
    assert check(changed(late, ("facts", "perhaps_retried"), tuple(entered))) is None


def test_a_result_that_waited_is_not_taken_for_the_one_that_came() -> None:
    moment = changed(GOOD["landed"], ("after", "plans"), ())
    assert _BY_NAME["results_move_their_own_rows_only"].check(moment) is None


def test_an_output_in_two_pieces_ends_where_it_should() -> None:
    moment = changed(
        GOOD["delivered"], ("outputs",), (Output("e", 0, 1, 7, (30,)), Output("e", 0, 1, 8, (), FinishReason.LENGTH))
    )
    assert _BY_NAME["choices_end_where_they_should"].check(moment) is None
    assert _BY_NAME["outputs_are_contiguous"].check(moment) is None


def test_a_violation_names_both_sides() -> None:
    found = _BY_NAME["reference_counts_are_true"].check(changed(GOOD["planned"], ("after", "ref_counts", 9), 2))
    assert found is not None
    assert found.sentence == "block 9: found count 2, expected 1, held by plan 5"
