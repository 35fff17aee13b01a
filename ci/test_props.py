"""Claims about what a pattern matches."""

from __future__ import annotations

import pytest

from ci.props import is_match


@pytest.mark.parametrize(
    ("pattern", "text", "expected"),
    [
        pytest.param("KV-4", "KV-4 freed once", True, id="an identifier"),
        pytest.param("kv4", "KV-4 freed once", True, id="an identifier without its dash"),
        pytest.param("KV-1", "KV-10 lifetime", False, id="the start of a longer identifier"),
        pytest.param("freed once", "KV-4 freed once", True, id="a name"),
        pytest.param("engine_machine", "engine machine", True, id="an underscore for a blank"),
        pytest.param("", "anything", True, id="no pattern"),
        pytest.param("radix", "engine machine", False, id="something else"),
    ],
)
def test_a_pattern_matches(pattern: str, text: str, expected: bool) -> None:
    assert is_match(pattern, text) is expected
