"""What fixes become that go too far: nothing is corrupted any more, but something leaks, hangs or thrashes. Data only.

Each names the mutant whose bug it fixes. Who finds them are the sentences on progress, bounds and quiescence.
"""

from __future__ import annotations

from ci.mutants.mutant import Mutant

_ENGINE = "engine_under_test/engine.py"
_ENDS = "engine_under_test/ends.py"
_RESULTS = "engine_under_test/results.py"
_BOOK = "engine_under_test/book.py"
_TRANSACTION = "engine_under_test/kv/transaction.py"
_HOLDING = "engine_under_test/kv/holding.py"
_SCHEDULER = "engine_under_test/scheduling/scheduler.py"
_CONNECTOR = "engine_under_test/distributed/connector.py"
_RANKS = "engine_under_test/distributed/ranks.py"

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "never-freed-behind-a-lost-plan",
        "vllm-defer-free-preempt-thrash",
        "https://github.com/vllm-project/vllm-ascend/issues/16315",
        _TRANSACTION,
        "            abandoned.append(record.plan.plan_id)\n",
        "            abandoned.append(record.plan.plan_id)\n            self._unsettled.pop(record.plan.plan_id, None)\n"
        "            self._unsettled[record.plan.plan_id] = type('Lost', (), {'has_passed': lambda _self: False})()\n",
        "A fence counts only when the result of its plan has come, which that of a lost plan never does: its blocks leak.",
        over_corrects="free-before-fence",
    ),
    Mutant(
        "freed-only-when-nothing-is-in-flight",
        "vllm-defer-free-preempt-thrash",
        "https://github.com/vllm-project/vllm-ascend/issues/16315",
        _HOLDING,
        "if oldest is None or fence < oldest]:",
        "if oldest is None]:",
        "Whatever was released waits until no plan at all is in flight, not for the last one that uses it.",
        over_corrects="release-waits-for-first-plan",
    ),
    Mutant(
        "victims-beside-their-own-quarantine",
        "vllm-defer-free-preempt-thrash",
        "https://github.com/vllm-project/vllm-ascend/issues/16315",
        _SCHEDULER,
        "            for block in seq.table.blocks:\n                left[block] = left.get(block, ref_counts[block]) - 1\n"
        "                available += left[block] == 0\n",
        "            if not seq.rows:\n                for block in seq.table.blocks:\n"
        "                    left[block] = left.get(block, ref_counts[block]) - 1\n"
        "                    available += left[block] == 0\n",
        "The blocks of a victim with plans in flight do not count, since they come later: so the next one is preempted too.",
        over_corrects="preemption-keeps-epoch",
    ),
    Mutant(
        "nobody-preempted-twice",
        "vllm-resume-preempt-thrash",
        "https://github.com/vllm-project/vllm/issues/25538",
        _SCHEDULER,
        "            if need <= available:\n                break\n            victims.append(seq)",
        "            if need <= available:\n                break\n            if seq.epoch:\n                break\n"
        "            victims.append(seq)",
        "Against thrashing, whoever was preempted once is spared from then on: when all were, nobody can go on.",
        over_corrects="admit-on-one-chunk",
    ),
    Mutant(
        "resume-waits-for-a-lost-plan",
        "vllm-async-placeholder-underflow",
        "https://github.com/vllm-project/vllm/pull/47900",
        _ENGINE,
        "        lost = [self._in_flight.pop_newest() for _ in abandoned]\n"
        "        self._book.oldest_in_flight = self._in_flight.oldest_id\n",
        "        lost = [self._in_flight.pop_newest() for _ in abandoned]\n",
        "A preempted request resumes when its last plan has been committed, which a lost one never is.",
        over_corrects="resume-before-landing",
    ),
    Mutant(
        "second-try-without-end",
        "ours",
        "",
        _ENDS,
        "        if not was_second_try:\n",
        "        if True:\n",
        "A step that fails is tried again for as long as it fails: nobody is ever told.",
        over_corrects="failed-step-not-tried-again",
    ),
    Mutant(
        "fork-waits-for-an-idle-engine",
        "hf-cb-fork-atomic",
        "https://github.com/huggingface/transformers/pull/46117",
        _RESULTS,
        "            elif seq.pending_forks and not seq.rows and seq",
        "            elif seq.pending_forks and self._book.oldest_in_flight is None and seq",
        "A fork waits for every plan in flight, not for its parent's; when it is asked for once and some are, it never comes.",
        over_corrects="fork-without-count",
    ),
    Mutant(
        "pins-of-aborted-loads-kept",
        "ascend-load-whitelist",
        "https://github.com/vllm-project/vllm-ascend/pull/16663",
        _CONNECTOR,
        "        if transfer.state is State.CLOSED:\n            self._end(transfer)\n",
        "        if transfer.state is State.CLOSED and (was is not State.ABORTING or transfer.machine is not Machine.LOAD_SINK):\n"
        "            self._end(transfer)\n",
        "The end of a load that was aborted meanwhile is not looked at, so that its blocks stay pinned.",
        ("transfers",),
        over_corrects="transfer-pins-follow-the-request",
    ),
    Mutant(
        "end-of-ranks-awaits-their-answer",
        "vllm-shm-writer-hang",
        "https://github.com/vllm-project/vllm/pull/45644",
        _RANKS,
        "        for process in self._processes:\n            process.kill()\n",
        "        while any(not process.has_ended() for process in self._processes):\n"
        "            for process in self._processes:\n                process.link.post(None)\n            time.sleep(0.1)\n",
        "Ranks are not killed but asked to end, and a frozen one never answers.",
        ("ranks",),
        over_corrects="frozen-ranks-left-behind",
    ),
)
