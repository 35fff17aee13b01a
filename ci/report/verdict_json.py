"""verdict.json: the form of an outcome that other programs read. Documented in docs/verdict.md, checked by a JSON schema.

Owns the names and units of its fields. Never holds anything that the schema does not describe.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from ci.outcome import Check, Outcome, seed_text
from properties.suite import Failure, Figure, Label, Statistic

SCHEMA = 1


@cache
def schema() -> dict[str, Any]:
    """The JSON schema of verdict.json."""
    loaded: dict[str, Any] = json.loads(files("ci.report").joinpath("verdict.schema.json").read_text(encoding="utf-8"))
    return loaded


def to_json(outcome: Outcome, replays: Mapping[int, str]) -> dict[str, Any]:
    """``replays``: for each failure that has one, by its place in ``outcome.failures``, its file relative to the report."""
    return {
        "schema": SCHEMA,
        "verdict": outcome.verdict.value,
        "reasons": list(outcome.reasons),
        "interrupted": outcome.is_interrupted,
        "commit": outcome.tree.commit,
        "tree": outcome.tree.label,
        "seed": seed_text(outcome.seed),
        "profile": outcome.profile.value,
        "command": outcome.command,
        "started_at": outcome.started_at,
        "wall_s": round(outcome.wall_s, 3),
        "checks": [_check(check) for check in outcome.checks],
        "failures": [
            failure_to_json(check, failure, replays.get(place)) for place, (check, failure) in enumerate(outcome.failures)
        ],
        "statistics": [
            statistic_to_json(item, check.id) for check in outcome.checks if check.result for item in check.result.statistics
        ],
        "mutants": list(outcome.mutants),
        "self_proof": [dataclasses.asdict(proof) for proof in outcome.proofs],
        "not_run": [dataclasses.asdict(entry) for entry in outcome.not_run],
        "figures": [figure_to_json(figure) for figure in figures(outcome)],
        "environment": dict(outcome.environment),
    }


def figures(outcome: Outcome) -> list[Figure]:
    """The run's own figures, then those of its suites under the suite's name."""
    found = [
        Figure("gate.wall_s", round(outcome.wall_s, 3), "s", Label.OBSERVED),
        Figure("gate.ops", outcome.num_ops, "1", Label.OBSERVED, "operations that did something, no-ops apart"),
        Figure("gate.evaluations", outcome.num_evaluations, "1", Label.OBSERVED, "invariant evaluations"),
        Figure("gate.alpha_used", outcome.alpha_used, "1", Label.DERIVED, "false-alarm rates added up, of 1e-6"),
    ]
    for check in outcome.checks:
        if check.result:
            found += [_under(check.id, figure) for figure in check.result.figures]
    return found


def _under(check: str, figure: Figure) -> Figure:
    """The figure under the suite's name, unless it bears it already."""
    return figure if figure.name.startswith(f"{check}.") else dataclasses.replace(figure, name=f"{check}.{figure.name}")


def figure_to_json(figure: Figure) -> dict[str, Any]:
    return {"name": figure.name, "value": figure.value, "unit": figure.unit, "label": figure.label.value, "note": figure.note}


def statistic_to_json(item: Statistic, check: str) -> dict[str, Any]:
    data = dataclasses.asdict(item)
    return {**data, "p": item.p if math.isfinite(item.p) else None, "check": check}  # JSON knows no NaN


def _check(check: Check) -> dict[str, Any]:
    result = check.result
    return {
        "id": check.id,
        "title": check.title,
        "verdict": check.verdict.value,
        "reasons": list(check.reasons),
        "seed": seed_text(check.seed),
        "wall_s": round(check.wall_s, 3),
        "examples": result.examples if result else 0,
        "ops": result.ops if result else 0,
        "noops": result.noops if result else 0,
        "reached": dict(result.reached) if result else {},
        "missed": list(result.missed) if result else [],
        "invariants": dict(result.invariants) if result else {},
        "note": result.note if result else "",
    }


def failure_to_json(check: Check, failure: Failure, replay: str | None = None) -> dict[str, Any]:
    """One counterexample, both sides of it."""
    violation = failure.violation
    return {
        "invariant": violation.invariant,
        "name": violation.name,
        "check": check.id,
        "seed": failure.seed,
        "ops": len(failure.ops),
        "ops_found": failure.ops_found,
        "replay": replay,
        "sentence": violation.sentence,
        "subject": violation.subject,
        "found": violation.found,
        "expected": violation.expected,
        "facts": list(violation.facts),
    }
