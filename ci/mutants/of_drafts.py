"""Bugs of an engine that speculates: drafts in plans, their slots, their ends, and who proposed them. Data only."""

from __future__ import annotations

from ci.mutants.mutant import Mutant

_ENDS = "engine_under_test/ends.py"
_RESULTS = "engine_under_test/results.py"
_APPLIED = "engine_under_test/applied.py"
_SEQUENCE = "engine_under_test/sequence.py"
_TRANSACTION = "engine_under_test/kv/transaction.py"
_SCHEDULER = "engine_under_test/scheduling/scheduler.py"
_HOST = "engine_under_test/sampling/host_verification.py"
_WALKS = ("speculation",)

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "drafts-counted-as-committed",
        "lmd-kvlen-double-count",
        "https://github.com/InternLM/lmdeploy/pull/4685",
        _RESULTS,
        "        seq.committed_len = end\n",
        "        seq.committed_len = end + num_drafts + 1 - len(tokens)\n",
        "The committed length of a row grows by all of its drafts, those that fell among them.",
        _WALKS,
    ),
    Mutant(
        "fallen-drafts-published",
        "omlx-trim-offset-only",
        "https://github.com/jundot/omlx/issues/3245",
        _APPLIED,
        "        ends.append(end)\n",
        "        ends.append(start + count)\n",
        "The host counts right, but its KV is confirmed, and found by others, with the drafts that fell.",
        _WALKS,
    ),
    Mutant(
        "stop-looked-for-at-the-end-of-a-run",
        "vllm-min-tokens-scheduler",
        "https://github.com/vllm-project/vllm/pull/26317",
        _SEQUENCE,
        "            if reason is not None:\n                return tuple(known[num_before:]), reason\n",
        "            if reason is not None and len(known) - num_before == len(tokens):\n"
        "                return tuple(known[num_before:]), reason\n",
        "Only the last token that a step brings is looked at: a stop token inside is passed over.",
        _WALKS,
    ),
    Mutant(
        "cap-before-stop-in-a-run",
        "sgl-spec-cap-before-stop",
        "https://github.com/sgl-project/sglang/pull/33758",
        _SEQUENCE,
        "        for token in tokens:\n            known.append(token)\n            reason = self.finish_reason_after(token)\n",
        "        left = self.request.sampling.max_tokens + self.prompt_len - num_before\n"
        "        if len(tokens) >= left:\n"
        "            known += tokens[:left]\n"
        "            return tokens[:left], FinishReason.LENGTH\n"
        "        for token in tokens:\n            known.append(token)\n            reason = self.finish_reason_after(token)\n",
        "A step that reaches max_tokens ends the choice by length, whatever stop token stands before.",
        _WALKS,
    ),
    Mutant(
        "blocks-of-fallen-drafts-kept",
        "vllm-mamba-eagle-extra-block",
        "https://github.com/vllm-project/vllm/pull/43650",
        _TRANSACTION,
        "            self._trim(record, planned_ends)\n",
        "            pass\n",
        "A block that was taken for drafts alone stays with its choice when they have fallen.",
        _WALKS,
    ),
    Mutant(
        "blocks-of-fallen-drafts-freed-at-once",
        "sgl-pool-index-early-free",
        "https://github.com/sgl-project/sglang/pull/18803",
        _TRANSACTION,
        "                continue\n            fence = table.last_plan\n            for block in reversed(table.blocks[num_blocks:]):\n",
        "                continue\n            fence = 0\n            for block in reversed(table.blocks[num_blocks:]):\n",
        "The block of fallen drafts is free before the plan that wrote them has ended on the device.",
        _WALKS,
    ),
    Mutant(
        "drafts-beyond-the-budget",
        "sgl-chunk-overcommit",
        "https://github.com/sgl-project/sglang/pull/30743",
        _SCHEDULER,
        "            room.budget -= width\n            rows.num_drafts[row] = width\n",
        "            rows.num_drafts[row] = width\n",
        "Drafts fit in what the step has left, each row by itself: together they do not.",
        _WALKS,
    ),
    Mutant(
        "drafts-beyond-the-longest-length",
        "vllm-dp-drafter-maxlen-hang",
        "https://github.com/vllm-project/vllm/pull/44954",
        "engine_under_test/drafting.py",
        "            width = min(most, params.max_tokens - (len(seq.tokens) - seq.prompt_len) - 1)\n",
        "            width = most\n",
        "A choice near its longest length is asked for as many drafts as any other.",
        _WALKS,
    ),
    Mutant(
        "drafts-of-a-preempted-row-kept",
        "lmd-evict-invalid-drafts",
        "https://github.com/InternLM/lmdeploy/pull/4564",
        _ENDS,
        "        self._forget_drafts(seq)\n        self._kv.release(seq.table, row)\n",
        "        self._kv.release(seq.table, row)\n",
        "The proposer is not told that a choice was preempted: it keeps what it has of it, drafts and all.",
        _WALKS,
    ),
    Mutant(
        "drafts-seen-by-the-token-before-them",
        "fi-multi-token-decode-plan",
        "https://github.com/flashinfer-ai/flashinfer/pull/3871",
        "engine_under_test/execution/fingerprint.py",
        "read[row][: 2 * end].dot(weights[: 2 * end])",
        "read[row].dot(weights[: len(read[row])])",
        "Each place of a row with drafts reads all of the row, as a single token may: no mask between the drafts.",
        _WALKS,
    ),
    Mutant(
        "drafts-left-when-their-row-lands",
        "sgl-eagle-draft-kv-on-hit",
        "https://github.com/sgl-project/sglang/pull/19897",
        _RESULTS,
        "            self._drafting.landed(seq, len(tokens) - 1)\n",
        "            self._drafting.landed(seq, len(tokens) - 1) if len(tokens) > len(seq.drafts) else None\n",
        "Only when all drafts stand is the proposer told: what it computed of those that fell stays.",
        _WALKS,
    ),
    Mutant(
        "recovered-with-the-noise-of-its-draft",
        "vllm 54282",
        "https://github.com/vllm-project/vllm/pull/54282",
        _HOST,
        "Purpose.RECOVER if kept < num else Purpose.SAMPLE",
        "Purpose.DRAFT if kept < num else Purpose.SAMPLE",
        "Where a draft fell, the token in its place is drawn with the numbers that the draft was drawn with.",
        _WALKS,
    ),
    Mutant(
        "drafts-judged-by-the-law-of-another-row",
        "tgi-spec-ids-merge",
        "https://github.com/huggingface/text-generation-inference/pull/2711",
        "engine_under_test/drafting.py",
        "proposal.probabilities[end - len(drafts) : end]",
        "proposal.probabilities[: len(drafts)]",
        "Every row's drafts are judged by the law that those of the first row were drawn from.",
        _WALKS,
    ),
    Mutant(
        "drafts-judged-without-the-filters",
        "vllm-spec-no-sampling-params",
        "https://github.com/vllm-project/vllm/pull/10198",
        _HOST,
        "        if has_processors(params):\n            truncate(logits[row], params)\n",
        "",
        "The law that drafts are judged by lacks top-k, top-p and min-p.",
        _WALKS,
    ),
    Mutant(
        "drafts-take-blocks-of-others",
        "vllm-fork-lookahead-prefill",
        "https://github.com/local-inference-lab/vllm/pull/99",
        _SCHEDULER,
        "    spare = 0 if view.waiting else max(room.free - room.promised - len(view.running), 0)\n",
        "    spare = max(room.free, 0)\n",
        "Drafts take blocks though somebody waits, and those that running choices want next: they cause preemptions.",
        _WALKS,
    ),
    Mutant(
        "second-try-with-drafts",
        "ours",
        "",
        _SCHEDULER,
        "        if view.max_drafts and view.only is None:\n",
        "        if view.max_drafts:\n",
        "The rows of a lost plan are tried again with the drafts that may have broken it.",
        _WALKS,
    ),
)
