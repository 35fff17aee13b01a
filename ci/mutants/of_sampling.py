"""Bugs of the sampler: corpus classes 5 and 6. Data only."""

from __future__ import annotations

from ci.mutants.mutant import Mutant

_SAMPLER = "engine_under_test/sampling/sampler.py"

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
)
