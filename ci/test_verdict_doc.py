"""Claims about verdict.json and its document, which names every field that the schema knows."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from ci.report.verdict_json import schema, statistic_to_json
from ci.tree import ROOT
from properties.suite import Statistic
from properties.verdict import Verdict


def fields(node: dict[str, Any]) -> Iterator[str]:
    for name, value in node.get("properties", {}).items():
        yield name
        yield from fields(value)
        yield from fields(value.get("items", {}))


def test_every_field_of_the_schema_is_documented() -> None:
    text = (ROOT / "docs" / "verdict.md").read_text()
    assert [name for name in fields(schema()) if f"`{name}`" not in text] == []


def test_nothing_may_stand_in_the_file_that_the_schema_does_not_know() -> None:
    assert schema()["additionalProperties"] is False
    assert schema()["properties"]["checks"]["items"]["additionalProperties"] is False


def test_a_test_without_a_p_is_written_as_json_that_others_can_read() -> None:
    statistic = Statistic("a", "null", "chi-square", 10, 1e-8, 0.1, 0.9, math.nan, Verdict.UNKNOWN)
    assert statistic_to_json(statistic, "b")["p"] is None
