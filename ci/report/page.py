"""index.html: one self-contained page, no network, readable on a phone, printable, light and dark.

Owns what the template is given; the words and the order of the page are in ``index.html.j2``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from ci import wording
from ci.outcome import Outcome, seed_text
from ci.report.picture import timeline_svg
from ci.report.verdict_json import figures


def to_html(outcome: Outcome, replays: Mapping[int, str], told: Mapping[int, Mapping[str, Any]], folder: str) -> str:
    """``replays`` as in `ci.report.verdict_json.to_json`; ``told``: the failures that were replayed, as `ci.replay.to_json`
    gives them; ``folder`` is where the report lies."""
    environment = Environment(
        loader=PackageLoader("ci.report", "."), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {
        "duration": wording.duration,
        "large": wording.large,
        "reach": wording.reach,
        "share": wording.share,
    }
    failures = [
        {
            **_story(outcome, finding.lead, replays),
            "command": f"assay replay {folder}/{replays[finding.lead]}" if finding.lead in replays else outcome.command,
            "picture": Markup(timeline_svg(told[finding.lead])) if finding.lead in told else "",  # every text was escaped
            "told": told.get(finding.lead),
            "also": wording.also_found(finding),
            "others": [_story(outcome, place, replays) for place in finding.others],
        }
        for finding in outcome.findings
    ]
    return environment.get_template("index.html.j2").render(
        outcome=outcome,
        seed=seed_text(outcome.seed),
        headline=wording.headline(outcome),
        selftest=wording.selftest(outcome),
        took=wording.long_duration(outcome.wall_s),
        reasons=wording.why_not_valid(outcome),
        failures=failures,
        statistics=[(check, found) for check in outcome.checks if check.result and (found := check.result.statistics)],
        confidence=_confidence(outcome),
        figures=figures(outcome),
    )


def _confidence(outcome: Outcome) -> str:
    """Of the estimates, as a share: the least of them."""
    found = [each.estimate for check in outcome.checks if check.result for each in check.result.statistics if each.estimate]
    return f"{min((each.confidence for each in found), default=1.0):.0%}"


def _story(outcome: Outcome, place: int, replays: Mapping[int, str]) -> dict[str, Any]:
    check, failure = outcome.failures[place]
    return {"check": check, "failure": failure, "violation": failure.violation, "replay": replays.get(place, "")}
