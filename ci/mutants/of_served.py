"""Bugs of noise on its way through the engine, each token right by itself: corpus classes 5 and 6. Data only."""

from __future__ import annotations

from ci.mutants.mutant import Mutant

_RUNNER = "engine_under_test/execution/fingerprint.py"
_SAMPLER = "engine_under_test/sampling/sampler.py"
_VERIFYING = "engine_under_test/execution/verifying.py"
_SERVED = ("served-law",)

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "shared-offset-in-an-engine",
        "vllm 54282",
        "https://github.com/vllm-project/vllm/pull/54282",
        "engine_under_test/sampling/host_verification.py",
        "weights, Purpose.RECOVER if kept < num else Purpose.SAMPLE, noise)",
        "weights, Purpose.DRAFT if kept < num else Purpose.SAMPLE, noise)",
        "On the host, too: the recovered token is drawn with the noise that its draft was drawn with.",
        _SERVED,
    ),
    Mutant(
        "one-seed-for-a-batch",
        "ours",
        "",
        _SAMPLER,
        "np.array([one.seed for one in params], dtype=np.uint64)",
        "np.array([params[0].seed for one in params], dtype=np.uint64)",
        "All rows of a batch draw with the seed of the first: requests that wait at the same position say the same.",
        _SERVED,
    ),
    Mutant(
        "a-draw-repeats-behind-a-preemption",
        "ours",
        "",
        _RUNNER,
        "            positions,\n            [len(request.prompt) for request in requests],",
        "            [at - plan.epochs[row] % 2 for row, at in zip(sampled, positions, strict=True)],\n            [len(request.prompt) for request in requests],",
        "Behind every other preemption positions of noise are one too low, so the draw in front of it is drawn again.",
        _SERVED,
    ),
    Mutant(
        "choices-draw-the-first-ones-noise",
        "vllm 54282",
        "https://github.com/vllm-project/vllm/pull/54282",
        _RUNNER,
        "            [plan.choices[row] for row in sampled],",
        "            [0 for row in sampled],",
        "A choice that was forked goes on with the noise of the first one.",
        _SERVED,
    ),
    Mutant(
        "lanes-of-the-row-above",
        "ours",
        "",
        _SAMPLER,
        "        temperatures = np.array([one.temperature for one in params])\n",
        "        temperatures = np.array([one.temperature for one in params])\n        uniforms = uniforms[np.arange(len(warm)) // 2 * 2]\n",
        "Every other row reads the lanes of noise of the row above, as if rows had not moved.",
        _SERVED,
    ),
    Mutant(
        "drafts-share-one-draw",
        "fi-chain-spec-reused-uniform",
        "https://github.com/flashinfer-ai/flashinfer/pull/424",
        _RUNNER,
        "            positions,\n            [len(request.prompt) for request in requests],",
        "            [plan.starts[row] + 1 for row in sampled],\n            [len(request.prompt) for request in requests],",
        "The draws behind all drafts of a row take the noise of the first.",
        _SERVED,
    ),
    Mutant(
        "a-draft-that-fell-is-said",
        "vllm-spec-no-sampling-params",
        "https://github.com/vllm-project/vllm/pull/10198",
        _VERIFYING,
        "            found[row] += (token,)\n            kept.append(number)",
        "            found[row] += (token if place >= len(drafts[row]) or place else drafts[row][place],)\n            kept.append(number)",
        "The first draft of a row is said whether it stands or not.",
        _SERVED,
    ),
)
