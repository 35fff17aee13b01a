"""Hypothesis strategies for requests and for small worlds.

Owns what is drawn: lengths at edges, prompts that share prefixes, every parameter of a request, requests that must be
refused, configurations of an engine. Never owns when an operation is drawn; that is a machine's business. Draws are kept few
and small, so that what Hypothesis shrinks reads well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from hypothesis import strategies as st

from engine_under_test.caps import Caps
from engine_under_test.types import Adapter, GrammarSpec, Media, Request, SamplingParams
from models.compiled import IS_INSTALLED
from models.prompts import edge_lengths, prompt
from models.proposers import PROPOSERS
from properties.small_grammars import GRAMMARS, STOPS

IDENTIFIERS = tuple("abcdefghij")
SPEC_ADAPTERS = (["x", 1], ["x", 2], ["y", 1])


@dataclass(frozen=True, slots=True)
class Traits:
    """What may vary in the requests of one world beyond prompt and length. Drawn once for each example, so that some
    examples share everything (many hits) and others hardly anything."""

    namespaces: bool = False  # tenants, salts, adapters, media
    choices: bool = False  # n > 1
    deadlines: bool = False
    sampling: bool = False  # temperature, stop tokens, min_tokens
    grammars: bool = False


def traits(caps_like: Caps | None = None) -> st.SearchStrategy[Traits]:
    """Any combination; what the target does not offer stays off."""
    has_choices = caps_like is None or caps_like.has_choices
    has_deadlines = caps_like is None or caps_like.has_deadlines
    has_namespaces = caps_like is None or caps_like.has_namespaces
    return st.builds(
        Traits,
        namespaces=st.booleans() if has_namespaces else st.just(False),
        choices=st.booleans() if has_choices else st.just(False),
        deadlines=st.booleans() if has_deadlines else st.just(False),
        sampling=st.booleans(),
        grammars=st.just(caps_like is not None and caps_like.has_grammars),
    )


def prompts(caps: Caps, *, reserve: int = 1) -> st.SearchStrategy[tuple[int, ...]]:
    """Prompts that fit the pool with `reserve` - 1 further slots, mostly of edge lengths, mostly sharing a prefix."""
    longest = max(1, caps.num_blocks * caps.block_size - reserve + 1)
    edges = sorted({min(length, longest) for length in edge_lengths(caps).values()})
    lengths = st.one_of(st.sampled_from(edges), st.integers(1, min(longest, 4 * caps.block_size + 2)))

    def build(length: int, variant: int, leaves_at: int) -> tuple[int, ...]:
        return prompt(length, caps.vocab_size, leaves_at=leaves_at % length, variant=variant)

    return st.builds(build, lengths, st.sampled_from([0, 0, 1, 2]), st.integers(0, 4 * caps.block_size))


def sampling_params(caps: Caps, allowed: Traits) -> st.SearchStrategy[SamplingParams]:
    """Parameters in range. Outputs are short, so that requests end and identifiers come back."""
    plain = _plain_params(caps, allowed)
    if not allowed.grammars:
        return plain

    def with_grammar(params: SamplingParams, grammar: GrammarSpec | None, num_stops: int) -> SamplingParams:
        if grammar is None:
            return params
        return replace(params, grammar=grammar, stop_token_ids=STOPS[:num_stops], min_tokens=0)

    return st.builds(with_grammar, plain, st.sampled_from([*GRAMMARS, None]), st.integers(1, len(STOPS)))


def _plain_params(caps: Caps, allowed: Traits) -> st.SearchStrategy[SamplingParams]:
    max_tokens = st.integers(1, 6)
    n = st.integers(1, min(3, caps.max_num_seqs)) if allowed.choices else st.just(1)
    if not allowed.sampling:
        return st.builds(SamplingParams, max_tokens=max_tokens, n=n)

    drawn = st.builds(
        SamplingParams,
        max_tokens=max_tokens,
        min_tokens=st.integers(0, 3),
        temperature=st.sampled_from([0.0, 0.7, 1.0, 2.0]),
        seed=st.integers(0, 2) | st.just(2**64 - 1),
        n=n,
        top_k=st.sampled_from([0, 0, 1, 3]),
        top_p=st.sampled_from([1.0, 1.0, 0.9, 0.3]),
        min_p=st.sampled_from([0.0, 0.0, 0.1]),
        stop_token_ids=st.lists(st.integers(0, caps.vocab_size - 1), max_size=caps.vocab_size // 2, unique=True).map(tuple),
    )
    return drawn.map(lambda params: replace(params, min_tokens=min(params.min_tokens, params.max_tokens)))


def media_items(prompt_len: int) -> st.SearchStrategy[tuple[Media, ...]]:
    """None, one or two items, anywhere in the prompt: within a block or across several, two of them in one block."""
    digest = st.sampled_from(["m0", "m1"])

    def build(first: str, start: int, length: int, second: str | None, gap: int) -> tuple[Media, ...]:
        begin = start % prompt_len
        end = min(begin + length, prompt_len)
        item = Media(first, begin, end - begin)
        if second is None or end + gap >= prompt_len:
            return (item,)
        return item, Media(second, end + gap, min(length, prompt_len - end - gap))

    return st.just(()) | st.builds(build, digest, st.integers(0, 8), st.integers(1, 6), st.none() | digest, st.integers(0, 1))


@st.composite
def requests(draw: st.DrawFn, caps: Caps, allowed: Traits, request_id: str, now: float = 0.0) -> Request:
    """A request that must be accepted if its identifier is not live."""
    sampling = draw(sampling_params(caps, allowed))
    tokens = draw(prompts(caps, reserve=sampling.max_tokens))
    room = caps.num_blocks * caps.block_size - len(tokens) + 1
    sampling = replace(sampling, max_tokens=min(sampling.max_tokens, room), min_tokens=min(sampling.min_tokens, room))
    request = Request(request_id, tokens, sampling, arrival_s=now)
    if draw(st.booleans()):
        request = replace(request, priority=draw(st.integers(-1, 2)))
    if allowed.namespaces:
        request = replace(
            request,
            tenant=draw(st.sampled_from(["", "t"])),
            cache_salt=draw(st.sampled_from(["", "s"])),
            adapter=draw(st.sampled_from([None, *caps.adapters])),
            media=draw(media_items(len(tokens))),
        )
    if allowed.deadlines and draw(st.booleans()):
        request = replace(request, deadline_s=now + draw(st.sampled_from([0.5, 2.0, 5.0])))
    return request


def repeats(earlier: Sequence[Request], request_id: str) -> st.SearchStrategy[Request]:
    """An earlier request once more under another identifier: the same prompt two and three times."""
    return st.sampled_from(list(earlier)).map(lambda request: replace(request, request_id=request_id, deadline_s=None))


def refused_requests(caps: Caps, request_id: str) -> st.SearchStrategy[Request]:
    """A request that must be refused, each for one reason only."""
    plain = Request(
        request_id, prompt(min(3, caps.num_blocks * caps.block_size), caps.vocab_size), SamplingParams(max_tokens=1)
    )
    pool = caps.num_blocks * caps.block_size
    bad_sampling = (
        SamplingParams(max_tokens=0),
        SamplingParams(max_tokens=-1),
        SamplingParams(max_tokens=1, min_tokens=2),
        SamplingParams(max_tokens=1, min_tokens=-1),
        SamplingParams(max_tokens=1, temperature=-1.0),
        SamplingParams(max_tokens=1, temperature=float("nan")),
        SamplingParams(max_tokens=1, temperature=float("inf")),
        SamplingParams(max_tokens=1, top_k=-1),
        SamplingParams(max_tokens=1, top_p=0.0),
        SamplingParams(max_tokens=1, top_p=float("nan")),
        SamplingParams(max_tokens=1, min_p=1.5),
        SamplingParams(max_tokens=1, seed=-1),
        SamplingParams(max_tokens=1, seed=2**64),
        SamplingParams(max_tokens=1, n=0),
        SamplingParams(max_tokens=1, n=-2),
    )
    pair = replace(plain, prompt=plain.prompt[:1] * min(2, pool))
    wrong_type: list[dict[str, Any]] = [
        {name: value} for name in ("max_tokens", "min_tokens", "n", "seed", "top_k") for value in (1.0, True)
    ]
    media = (  # over each other, the second within the first, or beyond the prompt
        (Media("m0", 0, 2), Media("m1", 1, 1)),
        (Media("m0", 0, 1), Media("m1", 0, 1)),
        (Media("m0", 1, 2),),
        (Media("m0", 0, 0),),
    )
    too_long = (
        replace(plain, prompt=prompt(pool + 1, caps.vocab_size)),
        replace(plain, prompt=prompt(pool, caps.vocab_size), sampling=SamplingParams(max_tokens=2)),
    )[: 2 * caps.has_length_check]
    odd: tuple[dict[str, Any], ...] = (
        *({"deadline_s": late} for late in (float("inf"), float("nan"), float("-inf"))),
        *({"arrival_s": when} for when in (float("inf"), float("nan"))),
        *({"priority": priority} for priority in (2**31 + 1, -(2**31) - 1, 0.5, True)),
        *({"prompt": prompt} for prompt in ((0, True), (False,), (0.0,))),
        *({"sampling": replace(plain.sampling, **fields)} for fields in wrong_type),
    )
    bad = [
        *(replace(plain, **fields) for fields in odd),
        *(replace(pair, media=items) for items in media),
        replace(plain, prompt=()),
        *too_long,
        replace(plain, prompt=(caps.vocab_size,)),
        replace(plain, prompt=(0, -1)),
        replace(plain, adapter=Adapter("nobody", 1)),
        replace(plain, adapter=Adapter("x", 99)),
        *(replace(plain, sampling=sampling) for sampling in bad_sampling),
    ]
    return st.sampled_from(bad)


@st.composite
def engine_configs(draw: st.DrawFn, *, max_plans_in_flight: int = 3, switches: bool = True) -> dict[str, Any]:
    """The fields of a small engine that differ from the defaults, as a JSON-able value. `switches`: some may be off."""
    block_size = draw(st.sampled_from([1, 2, 3, 4]))
    max_num_seqs = draw(st.integers(1, 5))
    budget = draw(st.sampled_from([block_size, block_size + 1, 2 * block_size + 1, 4 * block_size, 16]))
    config = {
        "num_blocks": draw(st.integers(3, 14)),
        "block_size": block_size,
        "max_num_seqs": max_num_seqs,
        "max_tokens_per_step": max(budget, max_num_seqs),
        "max_active_adapters": draw(st.integers(1, 2)),
        "vocab_size": 16,
        "adapters": [list(adapter) for adapter in SPEC_ADAPTERS],
        "order": draw(st.sampled_from(["first_come", "priority"])),
        "max_overtakes": draw(st.sampled_from([0, 1, 4])),
        "max_plans_in_flight": draw(st.integers(1, max_plans_in_flight)),
    }
    if switches:
        off = draw(st.sampled_from([None, None, None, None, "prefix_cache", "batching", "chunking"]))
        config |= {off: False} if off is not None else {}
    return config


@st.composite
def world_specs(
    draw: st.DrawFn,
    *,
    target: str = "assay",
    hashers: Sequence[str] = ("blake2b",),
    max_plans_in_flight: int = 3,
    switches: bool = True,
) -> dict[str, Any]:
    """What `models.build.world_from` builds a small world of a target from."""
    config = draw(engine_configs(max_plans_in_flight=max_plans_in_flight, switches=switches))
    found: dict[str, Any] = {"target": target, "config": config, "hasher": draw(st.sampled_from(list(hashers)))}
    if target == "assay" and draw(st.integers(0, 3)) == 3:
        found["speculation"] = {"proposer": draw(st.sampled_from(sorted(PROPOSERS))), "width": draw(st.integers(1, 4))}
    if target == "assay" and draw(st.integers(0, 3)) == 3:
        found["keeps_rows"] = True
    if target == "assay" and IS_INSTALLED and draw(st.integers(0, 3)) == 3:
        found["grammars"] = True
    return found


@st.composite
def radix_specs(draw: st.DrawFn) -> dict[str, Any]:
    """Small worlds of the radix target, whose block is one token."""
    max_num_seqs = draw(st.integers(1, 5))
    config = {
        "num_blocks": draw(st.integers(4, 40)),
        "max_num_seqs": max_num_seqs,
        "max_tokens_per_step": max(max_num_seqs, draw(st.sampled_from([1, 3, 5, 8, 16]))),
        "vocab_size": 16,
    }
    return {"target": "radix", "config": config, "hasher": "blake2b"}
