"""The key of docs/prefix-key.md: fixed vectors written out by hand, and injectivity."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from engine_under_test.types import Adapter, Media, Request
from models.prefix_key import block_encoding, block_media, namespace

TEXT = st.text(st.sampled_from("ab\0\u00e9\ud800"), max_size=3)
ADAPTERS = st.none() | st.builds(Adapter, TEXT, st.integers(-2, 2))
NAMESPACES = st.tuples(TEXT, TEXT, TEXT, ADAPTERS)
MEDIA = st.lists(st.tuples(TEXT, st.integers(-2, 2), st.integers(1, 3)), max_size=2).map(tuple)
BLOCKS = st.tuples(st.binary(max_size=3), st.booleans(), st.lists(st.integers(0, 3), max_size=3).map(tuple), MEDIA)


def test_namespace_is_written_as_the_page_says() -> None:
    request = Request("a", (1,), tenant="t", cache_salt="", adapter=Adapter("x", -1))
    expected = b"assay/namespace/1" + b"\1\0\0\0r" + b"\1\0\0\0t" + b"\0\0\0\0" + b"\1" + b"\1\0\0\0x" + b"\xff" * 8
    assert namespace("r", request) == expected


def test_first_block_and_later_block_are_written_as_the_page_says() -> None:
    assert block_encoding(b"ns", True, (1, 258), ()) == (
        b"assay/block/1" + b"\0" + b"\2\0\0\0ns" + b"\2\0\0\0" + b"\1\0\0\0" + b"\2\1\0\0" + b"\0\0\0\0"
    )
    assert block_encoding(b"k", False, (3,), (("d", -1, 2),)) == (
        b"assay/block/1"
        + b"\1"
        + b"\1\0\0\0k"
        + b"\1\0\0\0"
        + b"\3\0\0\0"
        + b"\1\0\0\0"
        + b"\1\0\0\0d"
        + b"\xff" * 8
        + b"\2\0\0\0"
    )


def test_media_of_a_block_are_those_that_overlap_it_with_offsets_from_its_start() -> None:
    items = (Media("late", 6, 1), Media("early", 1, 4), Media("before", 0, 4), Media("behind", 8, 1))
    assert block_media(items, 4, 4) == (("early", -3, 4), ("late", 2, 1))


@given(NAMESPACES, NAMESPACES)
def test_two_namespaces_never_share_an_encoding(
    one: tuple[str, str, str, Adapter | None], other: tuple[str, str, str, Adapter | None]
) -> None:
    encoded = [
        namespace(revision, Request("a", (1,), tenant=tenant, cache_salt=salt, adapter=adapter))
        for revision, tenant, salt, adapter in (one, other)
    ]
    assert (encoded[0] == encoded[1]) == (one == other)


@given(BLOCKS, BLOCKS)
def test_two_blocks_never_share_an_encoding(
    one: tuple[bytes, bool, tuple[int, ...], tuple[tuple[str, int, int], ...]],
    other: tuple[bytes, bool, tuple[int, ...], tuple[tuple[str, int, int], ...]],
) -> None:
    assert (block_encoding(*one) == block_encoding(*other)) == (one == other)
