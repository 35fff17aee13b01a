"""Bugs of plans that are made before the last result is known: corpus classes 4 and 12. Data only."""

from __future__ import annotations

from ci.mutants.mutant import Mutant

_ENGINE = "engine_under_test/engine.py"
_ENDS = "engine_under_test/ends.py"
_SEQUENCE = "engine_under_test/sequence.py"
_TRANSACTION = "engine_under_test/kv/transaction.py"
_HOLDING = "engine_under_test/kv/holding.py"
_FINGERPRINT = "engine_under_test/execution/fingerprint.py"
_DOOR = "engine_under_test/scheduling/door.py"

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "end-found-late-keeps-its-epoch",
        "minisgl-abort-finish-double-free",
        "https://github.com/sgl-project/mini-sglang/pull/111",
        _SEQUENCE,
        "        self.epoch += 1\n        self.status = Status.FINISHED",
        "        self.status = Status.FINISHED",
        "The token that a plan in flight sampled behind a stop is still emitted.",
    ),
    Mutant(
        "placeholder-of-another-plan",
        "vllm-async-preempt-token-refresh",
        "https://github.com/vllm-project/vllm/pull/26385",
        _FINGERPRINT,
        "            token = sampled.get((row_id, position))\n",
        "            token = next((told for (owner, _), told in sampled.items() if owner == row_id), None)\n",
        "A row whose input is in flight is fed the newest token of the row, also where a lost plan had sampled it.",
    ),
    Mutant(
        "shared-block-waits-for-its-last-holder",
        "sgl-pool-index-early-free",
        "https://github.com/sgl-project/sglang/pull/18803",
        _HOLDING,
        "        if last_use > fence:\n            fence = last_use\n        else:\n            pool.last_use[block] = fence\n",
        "",
        "A block that two requests share is free behind the last use of the one that let go last, though the other's runs still.",
    ),
    Mutant(
        "lost-plans-not-the-later-ones",
        "vllm-async-placeholder-underflow",
        "https://github.com/vllm-project/vllm/pull/47900",
        _ENGINE,
        "        for flight in lost:\n            self._journal.counters.abandoned += 1\n",
        "        for flight in lost[-1:]:\n            self._journal.counters.abandoned += len(lost)\n",
        "Rows of the plans behind a lost one stay in flight for ever.",
    ),
    Mutant(
        "capacity-rounded-up",
        "minisgl-seqlen-align-overflow",
        "https://github.com/sgl-project/mini-sglang/pull/68",
        _DOOR,
        "    if needed > slots:",
        "    if needed > -(-slots // 32) * 32:",
        "The room of the pool is rounded up to whole tiles at the door.",
    ),
    Mutant(
        "failed-step-not-tried-again",
        "ours",
        "",
        _ENDS,
        "        if not was_second_try:\n",
        "        if False:\n",
        "Every row of a step that failed ends, though half of them would have fitted.",
    ),
    Mutant(
        "lost-plan-forgets-its-fills",
        "ours",
        "",
        _TRANSACTION,
        "        for block in record.filled:  # perhaps never poisoned: once more, as soon as it is free\n"
        "            if pool.is_free[block] and block not in self.index.entry_of:\n"
        "                self._pending_fills[block] = None\n",
        "",
        "What a step was to fill counts as filled, though the step was refused its memory or lost.",
    ),
    Mutant(
        "second-try-as-large-as-the-first",
        "ours",
        "",
        _ENDS,
        "            book.only = frozenset(seqs[: -(-len(seqs) // 2)]) or None\n",
        "            book.only = frozenset(seqs) or None\n",
        "A step for which there was no memory is tried again as it was.",
    ),
    Mutant(
        "culprits-mates-end-too",
        "tokenspeed 434",
        "https://github.com/lightseekorg/tokenspeed/pull/434",
        _ENGINE,
        "            seqs = [seq for seq in seqs if seq.row_id in blamed]\n",
        "            seqs = [seq for seq in seqs if blamed]\n",
        "One row that came to no number ends the requests of its whole batch.",
        ("spoiled-slots", "storms"),
    ),
    Mutant(
        "fence-behind-the-uploads",
        "sgl-pool-index-early-free",
        "https://github.com/sgl-project/sglang/pull/18803",
        "engine_under_test/execution/streams.py",
        "StreamedStep(device, buffers, computed, ended)",
        "StreamedStep(device, buffers, ready, ended)",
        "The fence of a step passes when its inputs are on the device, before its rows have read and written KV.",
        ("float-runner",),
    ),
    Mutant(
        "results-of-lost-plans-are-kept",
        "ours",
        "",
        "engine_under_test/flights.py",
        "        flight = self._plans.pop()\n        self._early.pop(flight.plan_id, None)\n        return flight\n",
        "        return self._plans.pop()\n",
        "A result that came before its turn is kept for ever if its plan is lost: nothing goes wrong, and memory grows.",
    ),
    Mutant(
        "blamed-blocks-are-found-again",
        "tokenspeed 434",
        "https://github.com/lightseekorg/tokenspeed/pull/434",
        _ENGINE,
        "                self._kv.distrust(culprit.step.reservation.tables[row])\n",
        "                pass\n",
        "What a row read that came to no number stays in the cache: everybody with its prefix ends with the same error.",
        ("spoiled-slots",),
    ),
    Mutant(
        "publishes-behind-blamed-blocks",
        "ours",
        "",
        "engine_under_test/kv/transaction.py",
        "        if parent is not None and parent not in self.index:\n            return  # distrusted since\n",
        "",
        "Whoever goes on behind blocks that are not found any more enters what it computes behind them, where nobody finds it.",
        ("storms", "spoiled-slots"),
    ),
)
