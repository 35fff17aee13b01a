"""Claims about docs/verdict.md: it names every field that the schema knows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ci.report.verdict_json import schema
from ci.tree import ROOT


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
