"""A content key is shared by equal content alone: whatever differs in a prefix, the key of each block from there on differs."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine_under_test.distributed.content import KEY_BYTES, content_key, keys_of
from engine_under_test.distributed.messages import MAX_KEY_BYTES
from engine_under_test.types import PrefixEntry

GOOD: dict[str, Any] = {"layout": b"llama f32", "namespace": b"ns", "parent": b"", "tokens": (1, 2), "media": (("dog", 0, 2),)}
_PIECES = st.tuples(
    st.binary(max_size=3), st.binary(max_size=3), st.binary(max_size=3), st.lists(st.integers(0, 300), max_size=3).map(tuple)
)


@pytest.mark.parametrize(
    ("column", "other"),
    [
        ("layout", b"llama f16"),
        ("namespace", b"other tenant"),
        ("parent", b"x"),
        ("tokens", (2, 1)),
        ("tokens", (258,)),
        ("media", ()),
        ("media", (("cat", 0, 2),)),
        ("media", (("dog", -1, 2),)),
        ("media", (("dog", 0, 3),)),
    ],
    ids=["layout", "namespace", "parent", "order of tokens", "other tokens", "no media", "media", "offset", "length of media"],
)
def test_whatever_differs_shows_in_the_key(column: str, other: object) -> None:
    assert content_key(**GOOD) != content_key(**{**GOOD, column: other})


@given(_PIECES, _PIECES)
@settings(max_examples=200, deadline=None)
def test_no_two_contents_share_a_key(one: tuple[Any, ...], other: tuple[Any, ...]) -> None:
    assert (content_key(*one) == content_key(*other)) is (one == other)


def test_a_chain_names_each_block_behind_its_prefix() -> None:
    first = PrefixEntry(b"k1", b"ns", None, (1, 2))
    second = PrefixEntry(b"k1", b"ns", first, (1, 2))
    other = PrefixEntry(b"k3", b"ns", None, (7, 8))
    keys = keys_of(b"layout", [first, second])
    assert len(set(keys)) == 2, "equal tokens at another place"
    assert keys_of(b"layout", [other, second])[1] != keys[1], "equal tokens behind another prefix"
    assert all(len(key) == KEY_BYTES <= MAX_KEY_BYTES for key in keys)
