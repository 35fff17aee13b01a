"""Bugs of requests, results and pairing: corpus classes 3, 4 and 13. Data only."""

from __future__ import annotations

from ci.mutants.mutant import Mutant

_SEQUENCE = "engine_under_test/sequence.py"
_ENGINE = "engine_under_test/engine.py"
_FLIGHTS = "engine_under_test/flights.py"

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
        "        if token in self.stop_ids and num_emitted >= sampling.min_tokens:",
        "        if token in self.stop_ids and num_emitted > sampling.min_tokens + 1:",
        "A stop token among the first ones does not end the request.",
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
        _ENGINE,
        "            self._outbox.append(Output(request_id, choice, live.incarnation, emitted, (), reason, message))\n",
        "            if seq is not None:\n                self._outbox.append(Output(request_id, choice, live.incarnation, emitted, (), reason, message))\n",
        "An abort tells nobody of the choices that were never forked.",
    ),
    Mutant(
        "deadline-of-first-only",
        "ours",
        "",
        _ENGINE,
        "            if deadline_s is None or deadline_s > self._clock.now():",
        "            if deadline_s is None or deadline_s + 5.0 > self._clock.now():",
        "Deadlines are noticed late.",
    ),
    Mutant(
        "progress-at-last-chunk-only",
        "lll-chunk-progress-not-published",
        "https://github.com/ModelTC/lightllm/pull/741",
        _ENGINE,
        "            seq.committed_len += count\n            if tokens:",
        "            seq.committed_len += count if tokens or seq.pending_forks else 0\n            if tokens:",
        "The computed length is updated only when the prompt is complete.",
    ),
    Mutant(
        "scheduled-counted-twice",
        "lmd-kvlen-double-count",
        "https://github.com/InternLM/lmdeploy/pull/4685",
        _ENGINE,
        "        counters.scheduled_tokens += len(reservation.slots)",
        "        counters.scheduled_tokens += len(reservation.slots) + len(flight.admitted)",
        "The tokens of admitted rows are counted twice in part.",
    ),
    Mutant(
        "withdrawn-not-queued",
        "tgi-drop-popped-entry",
        "https://github.com/huggingface/text-generation-inference/pull/2498",
        _ENGINE,
        "                seq.status = Status.WAITING\n                seq.committed_len = 0\n                self._book.waiting.add(seq)",
        "                seq.status = Status.WAITING\n                seq.committed_len = 0",
        "A request whose first step was undone is lost from the queue.",
    ),
)
