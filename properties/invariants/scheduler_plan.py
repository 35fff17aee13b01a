"""What a plan may be: budgets, one row a choice, chunks, victims, progress, no starvation (SC-2, SC-3, SC-7 to SC-10)."""

from __future__ import annotations

from operator import attrgetter
from typing import Final

from engine_under_test.caps import Caps, DeclaredOrder, VictimSet
from engine_under_test.types import Plan, SequenceSnapshot
from properties.invariants.predicate import Predicate, predicate, row_named, violation
from properties.invariants.reading import ChoiceKey
from properties.moment import ChoiceFacts, Happening, Moment
from properties.verdict import Violation


def budgets_are_kept(moment: Moment) -> Violation | None:
    """SC-2: tokens, rows and active adapters of a plan each stay within their limit.

    Source: Yu et al., Orca, OSDI 2022, section 4; vllm-rbln pull 499, nano-vllm pull 207.
    """
    assert moment.planned is not None
    plan, caps = moment.planned.plan, moment.caps
    counts, adapters = plan.num_tokens, list(filter(None, map(_adapter_of, plan.requests)))
    if (tokens := sum(counts)) > caps.max_tokens_per_step:
        return _exceeds(plan, f"{tokens} tokens", caps.max_tokens_per_step)
    if plan.num_rows > caps.max_num_seqs:
        return _exceeds(plan, f"{plan.num_rows} rows", caps.max_num_seqs)
    if adapters and (active := len(set(adapters))) > caps.max_active_adapters:
        return _exceeds(plan, f"{active} active adapters", max(caps.max_active_adapters, 0))
    if not counts or min(counts) < 1:
        return violation("SC-2", f"plan {plan.plan_id}", "an empty plan or row", "at least one row and one token a row")
    return None


def _exceeds(plan: Plan, found: str, limit: int) -> Violation:
    return violation("SC-2", f"plan {plan.plan_id}", found, f"at most {limit}")


def rows_are_planned_once(moment: Moment) -> Violation | None:
    """SC-3: no choice stands twice in a plan.

    Source: Yu et al., Orca, OSDI 2022, section 4.
    """
    assert moment.planned is not None
    plan = moment.planned.plan
    names = list(zip(moment.view.planned.names, plan.choices, strict=True))
    if len(set(names)) != len(names):
        twice = [name for name in names if names.count(name) > 1]
        return violation("SC-3", f"plan {plan.plan_id}", f"{min(twice)} more than once", "each choice at most once")
    return None


def rows_start_where_they_were_scheduled_to(moment: Moment) -> Violation | None:
    """SC-3: a row starts at its epoch's scheduled length; one that (re)starts begins behind its hit or at a forked length.

    Source: nano-vllm pulls 207 and 213, mini-sglang pull 115.
    """
    seen = moment.view
    plan, size = seen.planned.plan, moment.after.block_size
    columns = (seen.planned.rows, plan.starts, seen.planned.ends, plan.hit_blocks, seen.planned_before, seen.planned_after)
    for row, start, end, hits, earlier, now in zip(*columns, strict=True):
        if earlier is not None and earlier.scheduled_len == start and not hits:
            expected = start
        elif earlier is not None and (earlier.scheduled_len or earlier.plans):
            expected = earlier.scheduled_len
        elif hits:
            expected = len(hits) * size
        else:
            expected = now.committed_len if now is not None else 0  # forked within this very verb, or at its beginning
        if start != expected:
            return violation("SC-3", row_named(row), f"starts at {start}", f"{expected}, where the last row ended")
        if now is not None and now.scheduled_len != end:
            return violation("SC-3", row_named(row), f"scheduled {now.scheduled_len} behind its plan", end)
    return None


def chunks_cover_prompt_and_output(moment: Moment) -> Violation | None:
    """SC-10: rows feed the tokens that stand at their positions, and exactly the row of the last known token samples.

    Source: Agrawal et al., Sarathi-Serve, OSDI 2024, section 4; vllm pull 26385.
    """
    seen = moment.view
    plan = seen.planned.plan
    behind = 0
    num_drafts = plan.num_drafts or (0,) * plan.num_rows
    columns = (plan.num_tokens, plan.num_pending, plan.samples, seen.planned.known_ends, seen.planned_after, seen.planned_facts)
    for i, (count, pending, samples, end, s, facts) in enumerate(zip(*columns, strict=True)):
        first = behind
        behind += count - pending
        cursor = behind - num_drafts[i]
        is_plain = s is not None and samples and not pending and end == s.visible_len
        if not is_plain and (found := _sampling_is_wrong(s, end, pending, samples)):
            return violation("SC-10", row_named(seen.planned.rows[i]), *found)
        if cursor == first + 1 and _is_known_token(plan.requests[i].prompt, facts, plan.starts[i], plan.token_ids[first]):
            continue
        if cursor > first and (found := _tokens_are_wrong(moment, i, plan.token_ids[first:cursor])):
            return violation("SC-10", row_named(seen.planned.rows[i]), *found)
    if behind != len(plan.token_ids):
        return violation("SC-10", f"plan {plan.plan_id}", f"{len(plan.token_ids)} input tokens", f"{behind}, as its rows need")
    return None


def _sampling_is_wrong(s: SequenceSnapshot | None, end: int, pending: int, samples: bool) -> tuple[str, str] | None:
    if s is None:
        return None
    beyond = end - s.visible_len
    if pending:
        if not samples or not 1 <= beyond < len(s.plans):
            expected = f"behind {s.visible_len} visible, one more for each of {len(s.plans) - 1} plans before it, sampling"
            return f"ends at {end} on a token in flight, {'sampling' if samples else 'not sampling'}", expected
    elif beyond > 0 or samples != (beyond == 0):
        word = "sampling" if beyond == 0 else "not sampling"
        return f"ends at {end}, {'sampling' if samples else 'not sampling'}", f"{word}: {s.visible_len} tokens are visible"
    return None


def _is_known_token(prompt: tuple[int, ...], facts: ChoiceFacts | None, position: int, token: int) -> bool:
    """A single token, as nearly every row feeds one, that is known to stand at its position."""
    number = position - len(prompt)
    if number < 0:
        return prompt[position] == token
    return facts is not None and number < len(facts.emitted) and facts.emitted[number] == token


def _tokens_are_wrong(moment: Moment, i: int, piece: tuple[int, ...]) -> tuple[str, str] | None:
    """Compares as far as the harness knows the output."""
    assert moment.planned is not None
    plan = moment.planned.plan
    prompt, start = plan.requests[i].prompt, plan.starts[i]
    expected = prompt[start : start + len(piece)]
    if expected == piece:
        return None
    if len(expected) < len(piece) and (choice := moment.facts.choice(plan.row_id(i))) is not None:
        first = max(start - len(prompt), 0)
        expected += tuple(choice.emitted[first : first + len(piece) - len(expected)])
    if piece[: len(expected)] != expected:
        return f"feeds {piece} from position {start}", str(expected)
    return None


def plans_are_not_empty_without_reason(moment: Moment) -> Violation | None:
    """SC-7: if some choice could run to its end with what is free, and nothing is in flight, something is planned.

    Source: text-generation-inference pull 1731, vllm #39734 and #45414 (queues that waited for ever).
    """
    if moment.planned is not None or moment.has_fault or moment.before.plans or moment.after.plans:
        return None
    if moment.caps.has_remote and moment.after.pinned:  # whoever is first in order may wait for what transfers hold
        return None
    if not moment.view.has_same_rows:  # somebody ended or was preempted in this verb: the next one is judged
        return None
    after, now = moment.after, moment.view.after
    available = len(now.free)
    if moment.caps.evicts_on_demand:
        available += len(after.cached.keys() - now.held - now.free)
    for s in after.sequences():
        choice = moment.facts.choice(s.row_id)
        if choice is None or s.row_id in after.loading:
            continue
        sampling = choice.request.sampling
        slots = s.prompt_len + sampling.max_tokens - 1
        need = (-(-slots // after.block_size) - len(s.table) + 1) * sampling.n - 1
        if need <= available:
            return violation("SC-7", row_named(s.row_id), f"nothing planned, {available} blocks free", f"it needs {need}")
    return None


def everybody_gets_tokens(moment: Moment) -> Violation | None:
    """SC-7: with faults over, no live choice goes without a token for more plans than the target states.

    Source: the target's `progress_bound`; vllm #25538 (resume-preempt thrash).
    """
    if moment.has_fault:
        return None
    idle = moment.facts.iterations_without_token()
    if idle and (worst := max(idle.values())) > moment.caps.progress_bound:
        key = max(idle, key=idle.__getitem__)
        found, expected = f"no token in {worst} plans", f"one in {moment.caps.progress_bound}, the stated bound"
        return violation("SC-7", f"request {key[0]}, choice {key[1]}", found, expected)
    return None


def everything_ends(moment: Moment) -> Violation | None:
    """SC-7: with faults over, every request ends: a drain leaves none.

    Source: Lamport, Proving the Correctness of Multiprocess Programs, 1977 (liveness); vllm #39734.
    """
    if left := moment.view.after.choices:
        return violation("SC-7", f"request {left[0][0]}, choice {left[0][1]}", "live behind the drain", "ended")
    return None


def loads_are_given_up_in_time(moment: Moment) -> Violation | None:
    """SC-7: who waits for blocks from elsewhere waits no longer than stated, whatever becomes of the transfer.

    Source: vllm pull 50754 (a sender that could not start a transfer told nobody).
    """
    late = moment.facts.polls_past_load_bound()
    if late and max(late.values()) > _POLLS_TO_GIVE_UP:
        row = max(late, key=late.__getitem__)
        found = f"still waiting for its load, {late[row]} polls behind its bound"
        return violation("SC-7", row_named(row), found, f"given up within {moment.caps.load_bound_s:g} s")
    return None


_POLLS_TO_GIVE_UP: Final = 80  # the device may hold back what was written already


def nobody_is_overtaken_too_often(moment: Moment) -> Violation | None:
    """SC-8: no waiting choice sees more later ones admitted than the declared order allows.

    Source: the target's `overtake_bound`; lightllm pull 706 (the selected policy was never used).
    """
    overtaken = moment.facts.overtaken()
    if not overtaken or max(overtaken.values()) <= moment.caps.overtake_bound:
        return None
    shown = moment.view.after.by_choice  # a choice still to be forked from its first one does not stand in the queue
    key = max((key for key in overtaken if key in shown), key=overtaken.__getitem__, default=None)
    if key is not None and (worst := overtaken[key]) > moment.caps.overtake_bound:
        found, expected = f"overtaken {worst} times", f"at most {moment.caps.overtake_bound}, the stated bound"
        return violation("SC-8", f"request {key[0]}, choice {key[1]}", found, expected)
    return None


def victims_are_allowed(moment: Moment) -> Violation | None:
    """SC-9: who is preempted is in the declared set: never the first in order, nor anybody before one who was kept.

    In priority order one who came of age goes before the others, and is left out of the comparison.
    Source: Kwon et al., SOSP 2023, section 4.5; lmdeploy pull 4127 (preemption in the wrong order).
    """
    victims = moment.view.victims
    if not victims:
        return None
    caps = moment.caps
    if caps.victims is VictimSet.NONE:
        return violation("SC-9", row_named(victims[0].row_id), "preempted", "nobody: this target declares no preemption")
    if caps.order is DeclaredOrder.UNDECLARED:
        return None
    return _victims_out_of_order(moment, victims)


def _victims_out_of_order(moment: Moment, victims: list[SequenceSnapshot]) -> Violation | None:
    caps, live = moment.caps, moment.facts.live()
    by_priority = caps.order is DeclaredOrder.PRIORITY
    aged = moment.facts.came_of_age() if by_priority else ()
    rank = {key: (facts.request.priority * by_priority, number) for number, (key, facts) in enumerate(live.items())}
    now, gone = moment.view.after.by_row, {_key(s) for s in victims}
    kept = [s for s in moment.before.running if _key(s) in rank and _key(s) not in gone and s[:4] in now]
    first = min(victims, key=lambda s: rank.get(_key(s), (0, 0)))
    expected = f"victims as declared: {caps.victims.value}"
    if not kept:
        return violation("SC-9", row_named(first.row_id), "preempted with everybody else who runs", expected)
    wronged = [s for s in kept if rank[_key(s)] > rank.get(_key(first), (0, 0))]
    if caps.victims is VictimSet.ANY_BUT_FIRST and len(wronged) < len(kept):
        return None
    last = max((s for s in wronged if _key(s) not in aged), key=lambda s: rank[_key(s)], default=None)
    if last is None:
        return None
    word = "is behind it in order" if by_priority else "came later"
    return violation("SC-9", row_named(first.row_id), f"preempted, {row_named(last.row_id)} {word} and was kept", expected)


def victims_keep_their_tokens(moment: Moment) -> Violation | None:
    """SC-9: a preempted choice keeps every token it emitted, and begins again with nothing computed and nothing held.

    Source: lmdeploy pull 4564; sglang #36855.
    """
    for victim in moment.view.victims:
        s = moment.view.after.by_choice[_key(victim)]
        if s.visible_len != victim.visible_len:
            return violation("SC-9", row_named(s.row_id), f"{s.visible_len} tokens behind", f"{victim.visible_len}, as before")
        if s.committed_len or s.table:
            found = f"committed {s.committed_len} in blocks {s.table}"
            return violation("SC-9", row_named(s.row_id), found, "nothing held, everything computed anew")
    return None


def declared_victims_were_preempted(moment: Moment) -> Violation | None:
    """SC-9: whom a step names as preempted has left its epoch.

    Source: vllm pull 46595 (two parts kept different sets of preempted requests).
    """
    assert moment.planned is not None
    for row in moment.planned.preempted:
        if row in moment.view.after.by_row:
            return violation("SC-9", row_named(row), "named as preempted, its epoch goes on", "a new epoch, or its end")
    return None


def _key(s: SequenceSnapshot) -> ChoiceKey:
    return (s.request_id, s.choice, s.incarnation)


def _is_ordered(caps: Caps) -> bool:
    return caps.order is not DeclaredOrder.UNDECLARED


_adapter_of: Final = attrgetter("adapter")
_PLANS: Final = (Happening.PLANNED, Happening.ROLLED_BACK)

PREDICATES: Final[tuple[Predicate, ...]] = (
    predicate("SC-2", budgets_are_kept, Happening.PLANNED, needs=("planned",)),
    predicate("SC-3", rows_are_planned_once, Happening.PLANNED, needs=("planned",)),
    predicate("SC-3", rows_start_where_they_were_scheduled_to, Happening.PLANNED, needs=("planned",)),
    predicate("SC-10", chunks_cover_prompt_and_output, Happening.PLANNED, needs=("planned",)),
    predicate("SC-9", victims_are_allowed, *_PLANS, only_with=("victims",)),
    predicate("SC-9", victims_keep_their_tokens, *_PLANS, only_with=("victims",)),
    predicate("SC-9", declared_victims_were_preempted, Happening.PLANNED, needs=("planned",), only_with=("preempted rows",)),
    predicate("SC-8", nobody_is_overtaken_too_often, Happening.PLANNED, is_observable=_is_ordered),
    predicate("SC-7", loads_are_given_up_in_time, is_observable=lambda caps: caps.has_remote),
    predicate("SC-7", plans_are_not_empty_without_reason, Happening.PLANNED, only_with=("no plan",)),
    predicate("SC-7", everybody_gets_tokens, Happening.PLANNED),
    predicate("SC-7", everything_ends, Happening.DRAINED),
)
