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
    environment.filters |= {"duration": wording.duration, "large": wording.large, "reach": wording.reach}
    failures = [
        {
            "check": check,
            "violation": failure.violation,
            "failure": failure,
            "command": f"assay replay {folder}/{replays[place]}" if place in replays else outcome.command,
            "picture": Markup(timeline_svg(told[place])) if place in told else "",  # every text in it was escaped
            "told": told.get(place),
        }
        for place, (check, failure) in enumerate(outcome.failures)
    ]
    return environment.get_template("index.html.j2").render(
        outcome=outcome,
        seed=seed_text(outcome.seed),
        headline=wording.headline(outcome),
        selftest=wording.selftest(outcome),
        took=wording.long_duration(outcome.wall_s),
        reasons=wording.why_not_valid(outcome),
        failures=failures,
        statistics=[(check, item) for check in outcome.checks if check.result for item in check.result.statistics],
        figures=figures(outcome),
    )
