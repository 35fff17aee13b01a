"""Bugs of the sampler's steps in front of the temperature and of log-probabilities: corpus classes 4 and 6. Data only."""

from __future__ import annotations

from ci.mutants.mutant import Mutant

_STEPS = "engine_under_test/sampling/adjustments.py"
_TORCH = "engine_under_test/sampling/torch_sampler.py"
_ASKED = "engine_under_test/execution/asked.py"
_TOKEN_BY_TOKEN = ("sampler-law",)
_SERVED = ("float-settings",)

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "frequency-of-the-prompt",
        "vllm-metal 69",
        "https://github.com/vllm-project/vllm-metal/pull/69",
        _STEPS,
        "    penalise_frequency(row, params.frequency_penalty, history.output)",
        "    penalise_frequency(row, params.frequency_penalty, history.prompt + history.output)",
        "The frequency penalty counts tokens of the prompt too.",
        _TOKEN_BY_TOKEN,
    ),
    Mutant(
        "repetition-divides-negative-logits",
        "transformers 2302",
        "https://github.com/huggingface/transformers/issues/2302",
        _STEPS,
        "np.where(values > 0, values / penalty, values * penalty)",
        "values / penalty",
        "The repetition penalty divides negative logits too, and so makes these tokens more probable.",
        _TOKEN_BY_TOKEN,
    ),
    Mutant(
        "bad-words-a-token-late",
        "ours",
        "",
        _STEPS,
        "        if start >= 0 and tuple(output[start:]) == tuple(word[:-1]):",
        "        if start >= 0 and tuple(output[start - 1 : -1] if start else output) == tuple(word[:-1]):",
        "The beginning of a bad word is looked for one token too early, so the word is dropped when it stands there already.",
        _TOKEN_BY_TOKEN,
    ),
    Mutant(
        "raw-logprobs-behind-the-steps",
        "ours",
        "",
        _TORCH,
        "        raw = logits_of_row[0].copy() if",
        "        raw = logits_of_row[0] if",
        "Raw log-probabilities are taken from a row that the steps then change in place.",
        _TOKEN_BY_TOKEN,
    ),
    Mutant(
        "logprobs-for-all-beside-one-that-asks",
        "lmd-mixed-logprobs",
        "https://github.com/InternLM/lmdeploy/pull/4222",
        _TORCH,
        "        if params.logprobs is not None:\n            logprobs[row] = told(left if raw is None else raw, tokens[row], params.logprobs)",
        "        if any(one.logprobs is not None for one in draws.params):\n            logprobs[row] = told(left if raw is None else raw, tokens[row], params.logprobs or 0)",
        "A row that asked for no log-probabilities is told some when one beside it asked.",
        _TOKEN_BY_TOKEN,
    ),
    Mutant(
        "logprobs-as-many-as-the-first-row-asks",
        "vllm 51789",
        "https://github.com/vllm-project/vllm/pull/51789",
        _TORCH,
        "told(left if raw is None else raw, tokens[row], params.logprobs)",
        "told(left if raw is None else raw, tokens[row], next(one.logprobs for one in draws.params if one.logprobs is not None))",
        "Every row is told of as many tokens as the first one that asks.",
        _TOKEN_BY_TOKEN,
    ),
    Mutant(
        "penalties-without-what-is-in-flight",
        "vllm 26467",
        "https://github.com/vllm-project/vllm/pull/26467",
        "engine_under_test/execution/rows.py",
        "            output.extend(tokens)",
        "            output.extend([0] * len(tokens))",
        "Penalties see a placeholder where a token is still in flight.",
        _SERVED,
    ),
    Mutant(
        "output-becomes-prompt-by-preemption",
        "vllm 29045",
        "https://github.com/vllm-project/vllm/issues/29045",
        "engine_under_test/execution/batch.py",
        '        found.append(History(rows.value("prompt", row), (*output',
        "        if plan.epochs[row]:\n"
        '            found.append(History((*rows.value("prompt", row), *output), ()))\n'
        "            continue\n"
        '        found.append(History(rows.value("prompt", row), (*output',
        "What was said in front of a preemption counts as prompt behind it, and is penalised no more.",
        _SERVED,
    ),
    Mutant(
        "prompt-logprobs-of-cached-positions",
        "vllm 42245",
        "https://github.com/vllm-project/vllm/pull/42245",
        "engine_under_test/book.py",
        "        if seq.computes_whole_prompt:\n            return ()\n",
        "",
        "A request that wants to be told of its prompt takes blocks from the cache, and nothing is told of their tokens.",
        _SERVED,
    ),
    Mutant(
        "prompt-logprobs-without-the-last",
        "vllm 41411",
        "https://github.com/vllm-project/vllm/pull/41411",
        _ASKED,
        "positions = range(start, min(start + plan.num_tokens[row], len(request.prompt) - 1))",
        "positions = range(start, min(start + plan.num_tokens[row], len(request.prompt) - 2))",
        "The last token of a prompt is not told of.",
        _SERVED,
    ),
    Mutant(
        "frequency-stops-at-six",
        "ours",
        "",
        _STEPS,
        "        row[tokens] -= penalty * counts\n",
        "        row[tokens] -= penalty * np.minimum(counts, 6)\n",
        "The frequency penalty counts no further than six.",
        _TOKEN_BY_TOKEN,
    ),
    Mutant(
        "repetition-forgets-what-is-old",
        "ours",
        "",
        _STEPS,
        "        seen = np.unique(np.array((*history.prompt, *history.output), dtype=np.int64))\n",
        "        seen = np.unique(np.array((*history.prompt, *history.output[-32:]), dtype=np.int64))\n",
        "The repetition penalty forgets what was said 32 tokens ago.",
        _TOKEN_BY_TOKEN,
    ),
    Mutant(
        "top-p-near-one-is-off",
        "ours",
        "",
        "engine_under_test/sampling/processors.py",
        "    if top_p < 1:\n",
        "    if top_p < 0.985:\n",
        "A top-p near one drops nothing.",
        _TOKEN_BY_TOKEN,
    ),
)
