"""Bugs of requests, results and pairing: corpus classes 3, 4 and 13. Data only."""

from __future__ import annotations

from ci.mutants.mutant import Mutant

_SEQUENCE = "engine_under_test/sequence.py"
_ENDS = "engine_under_test/ends.py"
_RESULTS = "engine_under_test/results.py"
_FLIGHTS = "engine_under_test/flights.py"
_JOURNAL = "engine_under_test/journal.py"

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "preemption-keeps-epoch",
        "trt-pause-before-update",
        "https://github.com/NVIDIA/TensorRT-LLM/pull/10943",
        _SEQUENCE,
        "        self.epoch += 1\n        self.status = Status.WAITING",
        "        self.status = Status.WAITING",
        "A result of before the preemption is applied after it.",
    ),
    Mutant(
        "stop-one-late",
        "ours",
        "",
        _SEQUENCE,
        "        if token in self.stop_ids and num_emitted > sampling.min_tokens:",
        "        if token in self.stop_ids and num_emitted > sampling.min_tokens + 1:",
        "A stop token does not end the request at the first place where it may.",
    ),
    Mutant(
        "results-paired-by-arrival",
        "vllm-async-placeholder-underflow",
        "https://github.com/vllm-project/vllm/pull/47900",
        _FLIGHTS,
        "        self._early.setdefault(result.plan_id, result)",
        "        self._early.setdefault(self._plans[0].plan_id, result)",
        "A result is applied to the oldest plan in flight, whichever plan it names.",
    ),
    Mutant(
        "unforked-choices-leak",
        "vllm-parent-req-leak",
        "https://github.com/vllm-project/vllm/pull/51629",
        _ENDS,
        "            self._journal.cut_short(row, num_emitted, reason, message)\n",
        "            if seq is not None:\n                self._journal.cut_short(row, num_emitted, reason, message)\n",
        "An abort tells nobody of the choices that were never forked.",
    ),
    Mutant(
        "deadline-of-first-only",
        "ours",
        "",
        _ENDS,
        "            if deadline_s is None or deadline_s > self._clock.now():",
        "            if deadline_s is None or deadline_s + 5.0 > self._clock.now():",
        "Deadlines are noticed late.",
    ),
    Mutant(
        "progress-at-last-chunk-only",
        "lll-chunk-progress-not-published",
        "https://github.com/ModelTC/lightllm/pull/741",
        _RESULTS,
        "            seq.committed_len += count\n            if tokens:",
        "            seq.committed_len += count if tokens or seq.pending_forks else 0\n            if tokens:",
        "The computed length is updated only when the prompt is complete.",
    ),
    Mutant(
        "scheduled-counted-twice",
        "lmd-kvlen-double-count",
        "https://github.com/InternLM/lmdeploy/pull/4685",
        _JOURNAL,
        "        counters.scheduled_tokens += len(reservation.slots)",
        "        counters.scheduled_tokens += len(reservation.slots) + len(flight.admitted)",
        "The tokens of admitted rows are counted twice in part.",
    ),
    Mutant(
        "withdrawn-not-queued",
        "tgi-drop-popped-entry",
        "https://github.com/huggingface/text-generation-inference/pull/2498",
        _ENDS,
        "                seq.status = Status.WAITING\n                seq.committed_len = 0\n                self._book.wait(seq)",
        "                seq.status = Status.WAITING\n                seq.committed_len = 0",
        "A request whose first step was undone is lost from the queue.",
    ),
    Mutant(
        "stale-result-finds-another-plan",
        "trt-pause-before-update",
        "https://github.com/NVIDIA/TensorRT-LLM/pull/10943",
        _FLIGHTS,
        "        flight = next((each for each in self._plans if each.plan_id == result.plan_id), None)\n        if flight is None or result.generation != generation:\n            return False\n        _require_fit(flight.step.plan, result, vocab_size)\n        self._early.setdefault(result.plan_id, result)",
        "        flight = next((each for each in self._plans if each.plan_id >= result.plan_id), None)\n        if flight is None or result.generation != generation:\n            return False\n        if list(flight.step.plan.row_ids()) != list(result.rows):\n            return False\n        _require_fit(flight.step.plan, result, vocab_size)\n        self._early.setdefault(flight.plan_id, result)",
        "A result of a lost plan is taken for that of the plan launched in its place.",
    ),
    Mutant(
        "abort-misses-the-queue",
        "minisgl-abort-finish-double-free",
        "https://github.com/sgl-project/mini-sglang/pull/111",
        _ENDS,
        "        self._kv.release(seq.table, seq.row_id)\n        self._book.leave(seq)\n        seq.end()",
        "        self._kv.release(seq.table, seq.row_id)\n        if seq.status is Status.RUNNING or seq.epoch == 0:\n            self._book.leave(seq)\n        seq.end()",
        "An abort of a request that waits after a preemption leaves it in the queue.",
    ),
    Mutant(
        "paused-row-gets-its-token",
        "trt-pause-before-update",
        "https://github.com/NVIDIA/TensorRT-LLM/pull/10943",
        _RESULTS,
        "                self._journal.row_dropped(seq, epoch, plan.plan_id)\n",
        "                if tokens and seq.status is Status.WAITING:\n                    seq.tokens.append(tokens[0])\n                self._journal.row_dropped(seq, epoch, plan.plan_id)\n",
        "The token in flight of a request that was just preempted is applied to it.",
    ),
    Mutant(
        "blame-counted-among-the-living",
        "ours",
        "",
        "engine_under_test/engine.py",
        "            seqs = [seq for seq in seqs if seq.row_id in blamed]\n",
        "            seqs = [seqs[row] for row in to_blame if row < len(seqs)]\n",
        "The rows that are to blame are counted without those that have ended since: a neighbour ends in place of the culprit.",
    ),
    Mutant(
        "deadlines-by-whole-seconds",
        "jetty-queued-timeout",
        "https://github.com/jetty/jetty.project/issues/6254",
        "engine_under_test/book.py",
        "            insort(self.deadlines, live, key=_deadline)\n",
        "            insort(self.deadlines, live, key=lambda each: int(_deadline(each)[0]))\n",
        "Of deadlines within one second, an earlier one waits behind a later one that was asked for first.",
    ),
    Mutant(
        "fences-pass-under-a-reservation",
        "kvc-partial-rollback",
        "https://github.com/ovg-project/kvcached/issues/364",
        "engine_under_test/kv/transaction.py",
        "        if not self._in_flight or self._in_flight[-1].is_launched:\n            super().settle()\n",
        "        super().settle()\n",
        "Blocks join the free queue between a reservation and its rollback, which loses them.",
    ),
)
