"""Bugs of drafts that were drawn from a law, in batches whose rows have options of their own: corpus classes 5 and 6. Data only."""

from __future__ import annotations

from ci.mutants.mutant import Mutant

_TRANSFORMER = "engine_under_test/execution/transformer.py"
_VERIFICATION = "engine_under_test/sampling/verification.py"
_HUNTS = ("drawn-drafts",)

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "history-without-the-drafts-in-front",
        "vllm-async-penalty-stale",
        "https://github.com/vllm-project/vllm/pull/26467",
        _TRANSFORMER,
        "states = [RowState(asked.params[number], _history_at(asked, number)) for number in numbers]",
        "states = [RowState(asked.params[each.first + place], _history_at(asked, each.first)) for each in rows for place in range(len(each.drafts) + 1)]",
        "Penalties and min_tokens of a step's later drafts know nothing of the drafts in front of them.",
        _HUNTS,
    ),
    Mutant(
        "drafts-judged-by-the-first-rows-seed",
        "lattice-spec-temp",
        "https://github.com/ohdearquant/lattice/issues/388",
        _VERIFICATION,
        "        np.array([ask.params.seed for ask in asks], dtype=np.uint64),\n",
        "        np.array([asks[0].params.seed for ask in asks], dtype=np.uint64),\n",
        "The drafts of a whole batch are judged with the seed of its first row.",
        _HUNTS,
    ),
    Mutant(
        "log-probabilities-of-the-first-draws",
        "vllm-logprob-ids-batchwide",
        "https://github.com/vllm-project/vllm/pull/51789",
        _TRANSFORMER,
        "of_kept = [logprobs[number] for number in kept] if logprobs else ()",
        "of_kept = [logprobs[number] for number in range(len(kept))] if logprobs else ()",
        "Behind a draft that fell, log-probabilities are those of another draw.",
        _HUNTS,
    ),
    Mutant(
        "processed-values-of-drafts-not-truncated",
        "vllm-spec-no-sampling-params",
        "https://github.com/vllm-project/vllm/pull/10198",
        "engine_under_test/sampling/sampler.py",
        "        truncate(logits[row], draws.params[row])\n        warm.remove(row)\n",
        "        warm.remove(row)\n",
        "Processed log-probabilities of tokens that rejection sampling found leave top-k, top-p and min-p out.",
        _HUNTS,
    ),
    Mutant(
        "drafts-judged-without-penalties",
        "vllm-spec-no-sampling-params",
        "https://github.com/vllm-project/vllm/pull/10198",
        "engine_under_test/sampling/processed.py",
        "        if state.params.is_adjusted:\n",
        "        if state.params.grammar is not None:\n",
        "Drawn drafts are judged by a law without penalties and bias.",
        _HUNTS,
    ),
    Mutant(
        "bonus-from-what-is-left",
        "fi-multi-token-decode-plan",
        "https://github.com/flashinfer-ai/flashinfer/pull/3871",
        _VERIFICATION,
        "    fell = torch.nonzero(kept < rows.num_drafts)[:, 0]\n",
        "    fell = torch.nonzero(kept < rows.drafts.shape[1])[:, 0]\n",
        "The bonus token of a row with fewer drafts than another comes from what a fallen draft would leave.",
        _HUNTS,
    ),
    Mutant(
        "drafts-of-a-step-share-noise",
        "vllm 54282",
        "https://github.com/vllm-project/vllm/pull/54282",
        "engine_under_test/sampling/draft_model.py",
        "np.array([len(asks[row].tokens) + place for row in rows], np.uint32)",
        "np.array([len(asks[row].tokens) for row in rows], np.uint32)",
        "All drafts of a row's step are drawn with one noise: each by itself is right, together they are not.",
        _HUNTS,
    ),
    Mutant(
        "drawn-drafts-cut-by-the-grammar",
        "vllm-spec-no-sampling-params",
        "https://github.com/vllm-project/vllm/pull/10198",
        "engine_under_test/drafting.py",
        "                seqs[number].drafts = drafts\n                seqs[number].draft_laws = proposal.probabilities[end - len(drafts) : end]\n",
        "                fit = _num_grammatical(ask, drafts, grammars)\n                seqs[number].drafts = drafts[:fit]\n                seqs[number].draft_laws = proposal.probabilities[end - len(drafts) : end - len(drafts) + fit] if fit else None\n",
        "Drawn drafts that the grammar forbids are not judged but left out, which favours those that it allows.",
        _HUNTS,
    ),
    Mutant(
        "drafts-judged-without-processors",
        "vllm 42744",
        "https://github.com/vllm-project/vllm/issues/42744",
        _TRANSFORMER,
        "        target = processed(logits[numbers], states, self._processors, self._grammars)",
        "        target = processed(logits[numbers], states, {name: lambda row, history: None for name in self._processors}, self._grammars)",
        "Drawn drafts are verified by a law that the processors of their request have not changed.",
        _HUNTS,
    ),
    Mutant(
        "min-tokens-counted-at-the-first-draft",
        "vllm 38467",
        "https://github.com/vllm-project/vllm/pull/38467",
        _TRANSFORMER,
        "        return History((), (0,) * (asked.positions[number] - asked.prompt_lens[number]))",
        "        first = number - sum(asked.params[at] is asked.params[number] for at in range(number))\n        return History((), (0,) * (asked.positions[max(first, 0)] - asked.prompt_lens[number]))",
        "Every draft of a step is verified as if it stood where the first one does: a stop token is kept out for too long.",
        _HUNTS,
    ),
)
