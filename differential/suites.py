"""The suites of this folder, for whoever runs them. Torch is loaded when a suite that computes with it runs, not before."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from functools import partial

from differential.sampling_stats import SUITE_ID, check_sampler
from properties.suite import CheckResult, Profile, Suite, SuiteContext
from properties.verdict import Verdict

_EXTRAS = {
    "torch": "model",
    "safetensors": "model",
    "tokenizers": "model",
    "gguf": "model",
    "triton": "model",
    "transformers": "reference",
}


def is_installed(extra: str) -> bool:
    """Whether every package of an optional part of the installation can be found; none is imported."""
    return all(importlib.util.find_spec(package) is not None for package, part in _EXTRAS.items() if part == extra)


def with_extras(suite_id: str, module: str, function: str, context: SuiteContext) -> CheckResult:
    """Runs a suite whose module needs optional packages; without one of them it is unknown, and says how to have it."""
    try:
        run: Callable[[SuiteContext], CheckResult] = getattr(importlib.import_module(module), function)
        return run(context)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in _EXTRAS:
            raise
        why = (
            f"it needs the extra {_EXTRAS[package]!r}, found that {package} is not installed; "
            "say pip install -c constraints.txt -e '.[model,reference]'"
        )
        return CheckResult(suite_id, Verdict.UNKNOWN, note=why)


FLOAT_SETTINGS = Suite(
    "float-settings",
    "language models, settings",
    partial(with_extras, "float-settings", "differential.float_settings", "check_float_settings"),
    share_s=33.0,
    extras=("model", "reference"),
)
FLOAT_RUNNER = Suite(
    "float-runner",
    "language models, store and faults",
    partial(with_extras, "float-runner", "differential.float_runner", "check_float_runner"),
    share_s=12.0,
    extras=("model", "reference"),
)
FLOAT_NUMERICS = Suite(
    "float-numerics",
    "language models, numerics",
    partial(with_extras, "float-numerics", "differential.float_numerics", "check_float_numerics"),
    share_s=12.0,
    extras=("model", "reference"),
)
# Profile quick is for seconds: loading a real model twice and asking two oracles takes a minute.
SMOLLM2 = Suite(
    "smollm2",
    "SmolLM2-135M as published, two oracles",
    partial(with_extras, "smollm2", "differential.smollm2", "check_smollm2"),
    profiles=frozenset({Profile.PR, Profile.NIGHTLY}),
    share_s=65.0,
    extras=("model", "reference"),
)
STREAMED_TEXT = Suite(
    "streamed-text",
    "streamed text, stop strings",
    partial(with_extras, "streamed-text", "differential.streamed_text", "check_streamed_text"),
    share_s=24.0,
    extras=("model",),
)
# The interpreter is slow: not in profile quick either.
FLOAT_KERNELS = Suite(
    "float-kernels",
    "language models, Triton kernels",
    partial(with_extras, "float-kernels", "differential.float_kernels", "check_float_kernels"),
    profiles=frozenset({Profile.PR, Profile.NIGHTLY}),
    share_s=20.0,
    extras=("model", "reference"),
)
PROCESSED = Suite(
    "processed-sampler-statistics",
    "sampler statistics, real logits",
    partial(with_extras, "processed-sampler-statistics", "differential.processed_stats", "check_processed"),
    share_s=8.0,
    extras=("model",),
)
SAMPLER_LAW = Suite(
    "sampler-law",
    "sampler of real logits, token by token",
    partial(with_extras, "sampler-law", "differential.sampler_law", "check_sampler_law"),
    share_s=12.0,
    extras=("model",),
)
SUITES: tuple[Suite, ...] = (
    Suite(SUITE_ID, "sampler statistics", check_sampler, share_s=3.0),
    SAMPLER_LAW,
    PROCESSED,
    STREAMED_TEXT,
    FLOAT_SETTINGS,
    FLOAT_RUNNER,
    FLOAT_NUMERICS,
    FLOAT_KERNELS,
    SMOLLM2,
)
