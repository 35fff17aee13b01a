"""Claims about docs/trace.md: its example is a trace, and it names every field of a line."""

from __future__ import annotations

import json
from pathlib import Path

from ci.tree import ROOT
from models.trace.requests import load_trace

TEXT = (ROOT / "docs" / "trace.md").read_text(encoding="utf-8")
EXAMPLE = [line.strip() for line in TEXT.splitlines() if line.startswith("    {")]


def test_the_example_is_a_trace(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text("\n".join(EXAMPLE) + "\n")
    assert len(load_trace(path)) == len(EXAMPLE) == 2


def test_each_field_of_a_line_has_a_row() -> None:
    assert [name for name in json.loads(EXAMPLE[0]) if f"| `{name}` |" not in TEXT] == []
