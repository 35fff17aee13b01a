"""Bugs of the sampler: corpus classes 5 and 6. Data only."""

from __future__ import annotations

from ci.mutants.mutant import Mutant

_SAMPLER = "engine_under_test/sampling/sampler.py"
_PROCESSORS = "engine_under_test/sampling/processors.py"
_TORCH = "engine_under_test/sampling/torch_sampler.py"
_REAL_LOGITS = ("processed-sampler-statistics",)

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "seed-zero-ignored",
        "lmd-seed-zero-ignored",
        "https://github.com/InternLM/lmdeploy/pull/4526",
        _SAMPLER,
        "np.array([one.seed for one in params], dtype=np.uint64)",
        "np.array([one.seed or 1 for one in params], dtype=np.uint64)",
        "Seed 0 is taken for no seed.",
    ),
    Mutant(
        "choices-share-noise",
        "vllm 54282",
        "https://github.com/vllm-project/vllm/pull/54282",
        _SAMPLER,
        "np.array([draws.choices[row] for row in warm], dtype=np.uint32)",
        "np.array([0 for row in warm], dtype=np.uint32)",
        "The choices of a request draw the same noise.",
    ),
    Mutant(
        "greedy-by-temperature",
        "free-greedy-mixed-ties",
        "https://github.com/FlashML-org/FreeToken/pull/471",
        _SAMPLER,
        "        temperatures = np.array([one.temperature for one in params])\n        tokens[warm] = gumbel_max(logits.take(warm, axis=0), temperatures, uniforms)",
        "        temperatures = np.array([one.temperature for one in params])\n        tokens[warm] = gumbel_max(logits.take(warm, axis=0), temperatures, uniforms)\n        tokens[len(warm) :] = gumbel_max(logits, np.full(len(logits), 0.2), np.resize(uniforms, logits.shape))[len(warm) :]",
        "Greedy rows are sampled at a low temperature when their batch has rows that are sampled.",
    ),
    Mutant(
        "temperature-off-by-little",
        "vllm 54282",
        "https://github.com/vllm-project/vllm/pull/54282",
        _SAMPLER,
        "        scores /= temperatures[:, None]",
        "        scores /= temperatures[:, None] * 1.05",
        "The temperature is five per cent too high: a bias that no example shows.",
    ),
    Mutant(
        "top-p-without-the-last",
        "llama.cpp 1953",
        "https://github.com/ggml-org/llama.cpp/pull/1953",
        _PROCESSORS,
        "count = int(np.searchsorted(sums, top_p * sums[-1])) + 1",
        "count = max(int(np.searchsorted(sums, top_p * sums[-1])), 1)",
        "Top-p drops the token with which the sum reaches p.",
        _REAL_LOGITS,
    ),
    Mutant(
        "top-k-keeps-ties",
        "vllm 50979",
        "https://github.com/vllm-project/vllm/pull/50979",
        _PROCESSORS,
        "        _keep_first(scaled, np.partition(scaled, -top_k)[-top_k], top_k)",
        "        np.copyto(scaled, -np.inf, where=scaled < np.partition(scaled, -top_k)[-top_k])",
        "Top-k keeps every token that is as probable as the k-th.",
        _REAL_LOGITS,
    ),
    Mutant(
        "min-p-before-temperature",
        "vllm-metal 728",
        "https://github.com/vllm-project/vllm-metal/pull/728",
        _TORCH,
        "(params.min_p > 0, lambda values: apply_min_p(values, params.min_p))",
        "(params.min_p > 0, lambda values: apply_min_p(values, params.min_p ** (1 / params.temperature)))",
        "Min-p is measured on the logits as they were before the temperature.",
        _REAL_LOGITS,
    ),
    Mutant(
        "filters-of-the-first-row",
        "fi-topk-per-row-k",
        "https://github.com/flashinfer-ai/flashinfer/pull/2325",
        _TORCH,
        "        lanes, left = _survivors(scaled, params)",
        "        lanes, left = _survivors(scaled, draws.params[warm[0]])",
        "All rows of a batch are filtered as its first row asks.",
        ("float-settings",),
    ),
)
