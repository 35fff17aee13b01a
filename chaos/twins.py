"""Pairs of requests that differ in one thing alone, of those that a remote pool's keys must tell apart (KV-8).

Owns the pairs, and the stories in which one stores what the other must not load. In each, the twin asks for what it shares with
the one who stored, if there is any of it, and for nothing else. What must hold is the catalogue's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final, NamedTuple

from engine_under_test.config import EngineConfig
from engine_under_test.types import Adapter, Media, Request, SamplingParams
from models.build import config_to
from properties.op import Op, OpKind

_ADAPTER, _NEWER, _OTHER = Adapter("a", 1), Adapter("a", 2), Adapter("b", 1)
_CONFIG: Final = EngineConfig(
    num_blocks=16, block_size=3, max_tokens_per_step=24, max_num_seqs=3, vocab_size=16, adapters=(_ADAPTER, _NEWER, _OTHER)
)
SPEC: Final = {
    "target": "assay",
    "config": config_to(_CONFIG),
    "hasher": "blake2b",
    "device": "streams",
    "remote": {"capacity_blocks": 48},
}
_PLACEHOLDER, _HEAD = 7, 7  # a token; so many of them are two blocks and one more
_IMAGE: Final = Media("image", 4, 2)  # in the second block
_PROMPT: Final = (3, 1, 4, *(_PLACEHOLDER,) * 6, 5, 9, 2, 6)
_FIRST: Final = Request(
    "first", _PROMPT, SamplingParams(max_tokens=2), tenant="us", cache_salt="salt", adapter=_ADAPTER, media=(_IMAGE,)
)
_STEP, _POLL = Op(OpKind.STEP), Op(OpKind.POLL)


class Twin(NamedTuple):
    """``differs``: in what alone. ``num_shared``: blocks, from the first on, that are equal all the same."""

    differs: Mapping[str, Any]
    num_shared: int = 0


TWINS: Final[Mapping[str, Twin]] = {
    "nothing": Twin({}, 4),
    "an image elsewhere in its block": Twin({"media": (replace(_IMAGE, start=3),)}, 1),
    "an image that begins a block earlier": Twin({"media": (replace(_IMAGE, start=1, length=5),)}),
    "a longer image": Twin({"media": (replace(_IMAGE, length=5),)}, 1),
    "another image": Twin({"media": (replace(_IMAGE, digest="other"),)}, 1),
    "no image": Twin({"media": ()}, 1),
    "a second image": Twin({"media": (_IMAGE, Media("image", 6, 2))}, 2),
    "a token": Twin({"prompt": (2, *_PROMPT[1:])}),
    "a token of the last block": Twin({"prompt": (*_PROMPT[:11], 3, _PROMPT[12])}, 3),
    "the tenant": Twin({"tenant": "them"}),
    "the salt": Twin({"cache_salt": "pepper"}),
    "tenant and salt that are one in a row": Twin({"tenant": "ussa", "cache_salt": "lt"}),
    "the adapter": Twin({"adapter": _OTHER}),
    "the adapter's version": Twin({"adapter": _NEWER}),
    "no adapter": Twin({"adapter": None}),
}


class Story(NamedTuple):
    """``num_shared``: how many blocks the twin may load, of four."""

    what: str
    num_shared: int
    ops: tuple[Op, ...]


def stories() -> list[Story]:
    """Of each pair: the first stores, the cache is emptied, and the twin asks. Of a pair that shares nothing once more, when
    the twin's head has been computed before, so that its tail alone is asked for."""
    told = []
    for what, (differs, num_shared) in TWINS.items():
        twin = replace(_FIRST, request_id="twin", **differs)
        told.append(Story(what, num_shared, (*_stored(), *_asked(twin))))
        if not num_shared:
            head = replace(twin, request_id="head", prompt=twin.prompt[:_HEAD])
            told.append(Story(f"{what}, its head here", 0, (*_stored(), Op(OpKind.ADD, head), _STEP, _STEP, *_asked(twin))))
    return told


def _stored() -> tuple[Op, ...]:
    return (*(_POLL,) * 3, Op(OpKind.ADD, _FIRST), _STEP, _STEP, *(_POLL,) * 6, Op(OpKind.RESET_CACHE))


def _asked(twin: Request) -> tuple[Op, ...]:
    return (Op(OpKind.ADD, twin), *(_POLL,) * 6, *(_STEP,) * 3, Op(OpKind.DRAIN))
