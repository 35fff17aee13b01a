"""Bugs of victims, admission, order and look-ups: corpus classes 3 and 4. Data only."""

from __future__ import annotations

from ci.mutants.mutant import Mutant

_SCHEDULER = "engine_under_test/scheduling/scheduler.py"
_ADMISSION = "engine_under_test/scheduling/admission.py"
_DOOR = "engine_under_test/scheduling/door.py"
_POLICY = "engine_under_test/scheduling/policy.py"
_BOOK = "engine_under_test/book.py"

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "whole-prompt-hit",
        "nano-full-hit-empty-query",
        "https://github.com/GeeeekExplorer/nano-vllm/pull/199",
        _BOOK,
        "            found = self._kv.lookup(seq.table, (seq.goal_len - 1) // self.config.block_size)",
        "            found = self._kv.lookup(seq.table, seq.goal_len // self.config.block_size)",
        "A hit may cover the whole prompt, and nothing is left to compute.",
    ),
    Mutant(
        "resume-before-landing",
        "vllm-async-placeholder-underflow",
        "https://github.com/vllm-project/vllm/pull/47900",
        _BOOK,
        "        return self.oldest_in_flight is None or seq.last_plan < self.oldest_in_flight",
        "        return True",
        "A preempted request resumes while its old plans are still in flight.",
    ),
    Mutant(
        "chunk-over-budget",
        "sgl-chunk-overcommit",
        "https://github.com/sgl-project/sglang/pull/30743",
        _SCHEDULER,
        "        count = min(remaining, room.budget)\n",
        "        count = remaining\n",
        "A running prefill ignores the token budget that is left.",
    ),
    Mutant(
        "preempt-first-come",
        "lmd-preempt-order",
        "https://github.com/InternLM/lmdeploy/pull/4127",
        _SCHEDULER,
        "        for seq in reversed(running[1:]):",
        "        for seq in running[1:]:",
        "The victim is the oldest that may be one, not the youngest.",
    ),
    Mutant(
        "quarantine-not-counted",
        "vllm-defer-free-preempt-thrash",
        "https://github.com/vllm-project/vllm-ascend/issues/16315",
        _SCHEDULER,
        "        available = view.num_free + view.num_quarantined\n",
        "        available = view.num_free\n",
        "Blocks on their way home are not counted, and everybody is preempted.",
    ),
    Mutant(
        "every-chunk-samples",
        "vllm-logitsproc-partial-and-preempt",
        "https://github.com/vllm-project/vllm/issues/29045",
        _SCHEDULER,
        "            samples.append(end >= known and not seq.pending_forks)",
        "            samples.append(not seq.pending_forks)",
        "A chunk in the middle of a prompt samples a token.",
    ),
    Mutant(
        "pending-token-missing",
        "vllm-async-preempt-token-refresh",
        "https://github.com/vllm-project/vllm/pull/26385",
        _SCHEDULER,
        "            pending.append(1 if end > known else 0)",
        "            pending.append(0)",
        "The worker is not told that a row's input token is still in flight.",
    ),
    Mutant(
        "seats-of-this-step-only",
        "nano-max-seqs-counts-step-only",
        "https://github.com/GeeeekExplorer/nano-vllm/pull/265",
        _SCHEDULER,
        "        room.seats -= 1 + seq.pending_forks\n        if only",
        "        if only",
        "The limit of running sequences counts only those admitted in this step.",
    ),
    Mutant(
        "admit-on-one-chunk",
        "vllm-resume-preempt-thrash",
        "https://github.com/vllm-project/vllm/issues/25538",
        _ADMISSION,
        "        if whole > free - room.promised:",
        "        if whole > free + view.config.num_blocks:",
        "A request is admitted on the blocks of its first chunk and preempted at the next.",
    ),
    Mutant(
        "nobody-comes-of-age",
        "lll-queue-class-override",
        "https://github.com/ModelTC/lightllm/pull/706",
        _POLICY,
        "    if due:\n",
        "    if due and not admitted and due[0].is_aged:\n",
        "Urgent requests overtake the others for ever.",
    ),
    Mutant(
        "declared-order-ignored",
        "lll-queue-class-override",
        "https://github.com/ModelTC/lightllm/pull/706",
        _POLICY,
        "    return first_come if order is Order.FIRST_COME else by_priority",
        "    return first_come",
        "The configured order is overwritten by the default.",
    ),
    Mutant(
        "stale-count-after-hit",
        "nano-stale-budget-after-cache-hit",
        "https://github.com/GeeeekExplorer/nano-vllm/pull/207",
        _ADMISSION,
        "    num_tokens = min(goal - start, room.budget, free * size)",
        "    num_tokens = min(goal, room.budget, free * size)",
        "The number of tokens to compute is taken before the hit is subtracted.",
    ),
    Mutant(
        "chunk-aligned-to-zero",
        "vllm-mamba-align-zero",
        "https://github.com/vllm-project/vllm/issues/45414",
        _ADMISSION,
        "    if num_tokens < 1 or (not config.chunking",
        "    num_tokens -= num_tokens % size if num_tokens < goal - start else 0\n    if num_tokens < 1 or (not config.chunking",
        "A chunk is rounded down to whole blocks, to nothing if the budget is below one.",
    ),
    Mutant(
        "oversize-accepted",
        "vllm-oversize-request-deadlock",
        "https://github.com/vllm-project/vllm/issues/39734",
        _DOOR,
        "    if needed > slots:",
        "    if len(request.prompt) > slots:",
        "A request that can outgrow the pool is accepted and waits for ever.",
    ),
    Mutant(
        "in-flight-rows-forgotten",
        "vllm-async-placeholder-underflow",
        "https://github.com/vllm-project/vllm/pull/47900",
        _SCHEDULER,
        "        start = seq.scheduled_len if seq.rows else seq.committed_len\n        remaining",
        "        start = seq.committed_len\n        remaining",
        "A row starts where its choice was committed, though a plan in flight computes from there.",
    ),
    Mutant(
        "of-age-until-put-out",
        "ours",
        "",
        _ADMISSION,
        "    return not seq.is_aged and seq.overtaken + sum(",
        "    return seq.overtaken + sum(",
        "Who has come of age and begins anew is overtaken again, as often as before, while it waits for a slot for its adapter.",
    ),
    Mutant(
        "room-of-victims-for-newcomers",
        "vllm-resume-preempt-thrash",
        "https://github.com/vllm-project/vllm/issues/25538",
        "engine_under_test/engine.py",
        "            if victims := scheduler.choose_victims(book):\n                preempted += [self._ends.preempt(seq) for seq in victims]\n"
        "            book.may_admit = not preempted\n",
        "            if victims := scheduler.choose_victims(book):\n                preempted += [self._ends.preempt(seq) for seq in victims]\n"
        "            book.may_admit = not victims\n",
        "Behind a refused plan the room that victims made for it goes to whoever waits, or to a victim itself.",
    ),
)
