"""The suites of this folder, for whoever runs them. Torch is loaded when a suite that computes with it runs, not before."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from functools import partial
from typing import Any

from differential import served_law
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
    "allpairspy": "reference",
    "llguidance": "grammar",
    "msgpack": "connector",
    "xxhash": "connector",
    "toxiproxy": "chaos",
    "requests": "chaos",
    "h11": "chaos",
    "psutil": "chaos",
}
_INSTALLED_WITH = (
    dict.fromkeys(("model", "reference"), "model,reference")
    | {"grammar": "model,grammar"}
    | dict.fromkeys(("connector", "chaos"), "connector,chaos")
)


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
            f"say pip install -c constraints.txt -e '.[{_INSTALLED_WITH[_EXTRAS[package]]}]'"
        )
        return CheckResult(suite_id, Verdict.UNKNOWN, note=why)


def _suite(suite_id: str, title: str, run: str, share_s: float, extras: tuple[str, ...], **more: Any) -> Suite:
    """``run``: module and function, as "streamed_text.check_streamed_text"."""
    module, _dot, function = run.partition(".")
    started = partial(with_extras, suite_id, f"differential.{module}", function)
    return Suite(suite_id, title, started, share_s=share_s, extras=extras, **more)


_MODEL, _BOTH = ("model",), ("model", "reference")
# Profile quick is for seconds: loading a real model twice and asking two oracles takes a minute; Triton's interpreter is slow.
_MINUTES = {"profiles": frozenset({Profile.PR, Profile.NIGHTLY})}
SAMPLER_LAW, PROCESSED, STREAMED_TEXT, FLOAT_SETTINGS, FLOAT_RUNNER, FLOAT_NUMERICS = (
    _suite("sampler-law", "sampler of real logits, token by token", "sampler_law.check_sampler_law", 18.0, _MODEL),
    _suite("processed-sampler-statistics", "sampler statistics, real logits", "processed_stats.check_processed", 11.0, _MODEL),
    _suite("streamed-text", "streamed text, stop strings", "streamed_text.check_streamed_text", 24.0, _MODEL),
    _suite("float-settings", "language models, settings", "float_settings.check_float_settings", 36.0, _BOTH),
    _suite("float-runner", "language models, store and faults", "float_runner.check_float_runner", 16.0, _BOTH),
    _suite("float-numerics", "language models, numerics", "float_numerics.check_float_numerics", 14.0, _BOTH),
)
FLOAT_BUCKETS = _suite("float-buckets", "language models, padded buckets", "float_buckets.check_float_buckets", 8.0, _BOTH)
FLOAT_MEDIA = _suite("float-media", "language models, media", "float_media.check_float_media", 10.0, _BOTH)
FLOAT_KERNELS, KERNEL_NUMBERS, MADE_MODELS, SMOLLM2 = (
    _suite("float-kernels", "language models, Triton kernels", "float_kernels.check_float_kernels", 25.0, _BOTH, **_MINUTES),
    _suite("kernel-numbers", "Triton kernels by themselves", "kernel_numbers.check_kernel_numbers", 20.0, _MODEL, **_MINUTES),
    _suite("made-models", "models made as files, other readers", "made_models.check_made_models", 8.0, _BOTH),
    _suite(
        "smollm2", "SmolLM2-135M as published, two oracles", "smollm2.check_smollm2", 65.0, _BOTH, model="smollm2", **_MINUTES
    ),
)
VERIFICATION_LAW, VERIFICATION_POWER = (
    _suite("verification-law", "speculation, its law", "verification_law.check_verification", 10.0, _MODEL),
    _suite("verification-power", "speculation, power of its tests", "verification_power.check_power", 13.0, _MODEL),
)
DRAWN_DRAFTS = _suite(
    "drawn-drafts", "speculation, drawn drafts row by row", "drawn_drafts.check_drawn_drafts", 6.0, ("model", "grammar")
)
PROPOSALS = _suite("proposals", "speculation, proposers and the width of drafts", "proposals.check_proposals", 6.0, _MODEL)
ADAPTERS = _suite("adapters", "language models, adapters", "adapted_suite.check_adapters", 6.0, _MODEL)
STRUCTURED = _suite("structured-output", "structured output", "structured.check_structured", 12.0, ("model", "grammar"))
FIRST_POSITIONS = _suite(
    "smollm2-statistics", "sampler statistics, SmolLM2", "smollm2_stats.check_first_positions", 9.0, _BOTH, model="smollm2",
    **_MINUTES,
)  # fmt: skip
COVERING = _suite(
    "covering-array", "everything in pairs", "covered.check_covered", 15.0, ("model", "reference", "grammar"), **_MINUTES
)
SUITES: tuple[Suite, ...] = (
    Suite(SUITE_ID, "sampler statistics", check_sampler, share_s=3.0),
    Suite(served_law.SUITE_ID, "statistics through the engine", served_law.check_served, share_s=24.0),
    COVERING,
    SAMPLER_LAW,
    PROCESSED,
    VERIFICATION_LAW,
    VERIFICATION_POWER,
    DRAWN_DRAFTS,
    PROPOSALS,
    STREAMED_TEXT,
    STRUCTURED,
    FLOAT_SETTINGS,
    FLOAT_RUNNER,
    FLOAT_NUMERICS,
    ADAPTERS,
    FLOAT_BUCKETS,
    FLOAT_MEDIA,
    FLOAT_KERNELS,
    MADE_MODELS,
    KERNEL_NUMBERS,
    SMOLLM2,
    FIRST_POSITIONS,
)
