"""A `CheckResult` as JSON and back: how a suite's process hands over what it saw.

Owns the form between processes only; the documented form for readers is `ci/report/verdict_json.py`.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from properties.op import Op
from properties.suite import CheckResult, Estimate, Failure, Figure, Label, Statistic
from properties.verdict import Verdict, Violation


def result_to_json(result: CheckResult) -> dict[str, Any]:
    """A JSON object with every column."""
    data = {column.name: getattr(result, column.name) for column in dataclasses.fields(result)}
    for name in ("reached", "invariants", "digests"):
        data[name] = dict(data[name])
    data["failures"] = [failure_to_json(failure) for failure in result.failures]
    data["statistics"] = [dataclasses.asdict(statistic) for statistic in result.statistics]
    data["figures"] = [_plain(figure) for figure in result.figures]
    return data


def result_from_json(data: dict[str, Any]) -> CheckResult:
    """The inverse of `result_to_json`."""
    fields = dict(data)
    fields["verdict"] = Verdict(fields["verdict"])
    fields["missed"] = tuple(fields["missed"])
    fields["failures"] = tuple(failure_from_json(item) for item in fields["failures"])
    fields["statistics"] = tuple(map(_statistic_from_json, fields["statistics"]))
    fields["figures"] = tuple(Figure(**{**item, "label": Label(item["label"])}) for item in fields["figures"])
    return CheckResult(**fields)


def _statistic_from_json(item: dict[str, Any]) -> Statistic:
    estimate = item.get("estimate")
    return Statistic(
        **{**item, "verdict": Verdict(item["verdict"]), "estimate": None if estimate is None else Estimate(**estimate)}
    )


def failure_to_json(failure: Failure) -> dict[str, Any]:
    return {
        "violation": violation_to_json(failure.violation),
        "seed": failure.seed,
        "world": dict(failure.world),
        "ops": [op.to_json() for op in failure.ops],
        "ops_found": failure.ops_found,
    }


def failure_from_json(data: dict[str, Any]) -> Failure:
    return Failure(
        violation_from_json(data["violation"]),
        seed=data["seed"],
        world=data["world"],
        ops=tuple(Op.from_json(item) for item in data["ops"]),
        ops_found=data["ops_found"],
    )


def violation_to_json(violation: Violation) -> dict[str, Any]:
    data = _plain(violation)
    data["facts"] = list(violation.facts)
    return data


def violation_from_json(data: dict[str, Any]) -> Violation:
    return Violation(**{**data, "facts": tuple(data.get("facts", ()))})


def _plain(value: Any) -> dict[str, Any]:
    return {column.name: getattr(value, column.name) for column in dataclasses.fields(value)}
