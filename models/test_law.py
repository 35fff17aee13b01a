"""The law against the worked examples of docs/fingerprint.md, and against itself in pieces."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_under_test.types import Adapter, Media, Request, SamplingParams
from models import law as law_module
from models.law import Law
from models.prefix_key import field
from models.words import adapter_word, h64, mix, philox, uniforms

ONE = Request("one", (5, 0, 7))
TWO = Request("two", (1, 2, 2, 3, 0), adapter=Adapter("lora", 2), media=(Media("sha256:cat", 1, 2),))
LONG_SEED = 0x0123456789ABCDEF

CELLS_ONE = "fad6e24671254235 7e881f2caa4bf9c7 bff505763b60ad4e c751cbe37f2b5646 d3ba58c9d1aa0ed1 ef0f7694a14e1555"
CELLS_TWO = (
    "3fb504e1d9fc1a81 677744995fc13168 c89eeb6699b99a2c 18e09192842387a0 1c5750bf12dc591c 3cc15f1749ce3d89 "
    "794c2706e2ac01c7 21869956ca9cf646 bcf5df4b987a6221 178f1f0e13e9d4e3"
)


def token_after(request: Request, choice: int = 0, **sampling: Any) -> int:
    known = Request(
        request.request_id,
        request.prompt,
        SamplingParams(**sampling),
        adapter=request.adapter,
        media=request.media,
    )
    law = Law(8)
    track = law.open(known, choice)
    law.extend([track], [len(known.prompt)])
    return law.next_tokens([track], [len(known.prompt)])[0]


def test_mix_gives_the_published_words() -> None:
    assert [hex(word) for word in mix(np.array([0, 1], np.uint64)).tolist()] == ["0xe220a8397b1dcdaf", "0x910a2dec89025cc1"]


def test_names_become_the_published_words() -> None:
    assert adapter_word(TWO.adapter) == 0xD46976062583A766
    assert h64(b"assay/media/1" + field("sha256:cat")) == 0xD22258AF2C26659C


@pytest.mark.parametrize(
    ("counter", "seed", "output"),
    [
        ("00000000 00000000 00000000 00000000", 0, "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ("ffffffff ffffffff ffffffff ffffffff", 2**64 - 1, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        ("243f6a88 85a308d3 13198a2e 03707344", 0x299F31D0_A4093822, "d16cfe09 94fdcceb 5001e420 24126ea1"),
    ],
    ids=["all zero", "all one", "digits of pi"],
)
def test_philox_gives_the_known_answers(counter: str, seed: int, output: str) -> None:
    words = np.array([[int(word, 16) for word in counter.split()]], np.uint64)
    assert philox(words, seed)[0].tolist() == [int(word, 16) for word in output.split()]


def test_noise_gives_the_published_uniforms() -> None:
    expected = [0.6546779457712546, 0.090084103285335, 0.42914022237528116]
    expected += [0.2043276933254674, 0.1316236451966688, 0.5346988580422476]
    assert uniforms(LONG_SEED, 2, np.array([5]), 0, 6)[0].tolist() == expected


@pytest.mark.parametrize(("request_", "cells"), [(ONE, CELLS_ONE), (TWO, CELLS_TWO)], ids=["plain", "adapter and media"])
@pytest.mark.parametrize("many", [1, 24], ids=["as arrays", "one by one"])
def test_cells_are_those_of_the_worked_examples(
    request_: Request, cells: str, many: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(law_module, "_MANY", many)
    law = Law(8)
    track = law.open(request_, 0)
    law.extend([track], [len(request_.prompt)])
    assert law.cells([track], [track.length]).flatten().tolist() == [int(word, 16) for word in cells.split()]


@pytest.mark.parametrize(("request_", "greedy", "masked"), [(ONE, 3, 1), (TWO, 4, 3)], ids=["plain", "adapter and media"])
def test_greedy_takes_the_highest_unmasked_logit(request_: Request, greedy: int, masked: int) -> None:
    assert token_after(request_) == greedy
    assert token_after(request_, min_tokens=1, stop_token_ids=(greedy,)) == masked


@pytest.mark.parametrize(
    ("request_", "seed", "stops", "tokens"),
    [
        (ONE, 7, (), [3, 0, 3, 3, 3, 3, 3, 3]),
        (ONE, LONG_SEED, (), [5, 3, 3, 3, 3, 3, 0, 3]),
        (ONE, 7, (3,), [5, 0, 1, 1, 7, 0, 5, 0]),
        (TWO, 7, (), [3, 4, 4, 3, 3, 3, 4, 4]),
        (TWO, LONG_SEED, (), [4, 4, 4, 3, 4, 4, 3, 4]),
    ],
    ids=["one", "one with a long seed", "one with a masked token", "two", "two with a long seed"],
)
def test_choices_sample_the_tokens_of_the_worked_examples(
    request_: Request, seed: int, stops: tuple[int, ...], tokens: list[int]
) -> None:
    drawn = [
        token_after(request_, choice, temperature=1.0, seed=seed, min_tokens=1, stop_token_ids=stops) for choice in range(8)
    ]
    assert drawn == tokens


@pytest.mark.parametrize(
    ("dropping", "left"),
    [
        # The logits of the first example at T = 1, as shares of the highest: 3 1, 1 0.049, 0 0.026, the others 0.011 or less.
        ({"top_k": 1}, {3}),
        ({"top_k": 2}, {3, 1}),
        ({"min_p": 0.03}, {3, 1}),
        ({"min_p": 0.02}, {3, 1, 0}),
        ({"top_p": 0.9}, {3}),
        ({"top_p": 0.95}, {3, 1}),
        ({"top_k": 2, "top_p": 0.95}, {3}),  # of the first two alone the first is 0.953
        ({"min_p": 0.02, "top_k": 7, "top_p": 0.97}, {3, 1}),
    ],
    ids=str,
)
def test_no_token_is_drawn_that_its_parameters_drop(dropping: dict[str, float], left: set[int]) -> None:
    drawn = {token_after(ONE, choice, temperature=1.0, seed=seed, **dropping) for seed in range(40) for choice in range(8)}
    assert drawn == left


def test_everything_masked_gives_token_zero() -> None:
    for temperature in (0.0, 1.0):
        assert token_after(ONE, min_tokens=1, stop_token_ids=tuple(range(8)), temperature=temperature) == 0


@given(
    st.lists(st.lists(st.integers(0, 7), min_size=1, max_size=12), min_size=1, max_size=4),
    st.lists(st.integers(1, 5), min_size=1, max_size=4),
    st.booleans(),
)
def test_cells_do_not_depend_on_the_chunks_or_on_batch_mates(
    prompts: list[list[int]], chunks: list[int], is_warm: bool
) -> None:
    law = Law(8)
    if is_warm:  # every prompt was seen before
        law.extend([law.open(Request("", tuple(prompt)), 0) for prompt in prompts], [len(prompt) for prompt in prompts])
    requests = [Request(str(i), tuple(p), media=(Media("m", 1, 3),) * (i % 2)) for i, p in enumerate(prompts)]
    together = [law.open(request, 0) for request in requests]
    for step in range(12):
        ends = [track.length + chunks[(step + i) % len(chunks)] for i, track in enumerate(together)]
        law.extend(together, [min(end, len(track.tokens)) for end, track in zip(ends, together, strict=True)])
    for track, request in zip(together, requests, strict=True):
        alone_law = Law(8)
        alone = alone_law.open(request, 0)
        alone_law.extend([alone], [len(request.prompt)])
        assert (law.cells([track], [track.length]) == alone_law.cells([alone], [alone.length])).all()
        assert law.next_tokens([track], [track.length]) == alone_law.next_tokens([alone], [alone.length])


_SAMPLINGS = (
    SamplingParams(),
    SamplingParams(temperature=1.0, seed=7),
    SamplingParams(temperature=0.3, seed=2**64 - 1, stop_token_ids=(1, 2, 40), min_tokens=4),
    SamplingParams(temperature=2.0, min_p=0.05, top_k=5, top_p=0.8),
    SamplingParams(stop_token_ids=tuple(range(16)), min_tokens=8),
    SamplingParams(temperature=1.0, stop_token_ids=tuple(range(16)), min_tokens=8),
)


@given(st.lists(st.tuples(st.lists(st.integers(0, 15), min_size=1, max_size=9), st.sampled_from(_SAMPLINGS)), max_size=6))
def test_tokens_are_the_same_row_by_row_and_as_arrays(rows: list[tuple[list[int], SamplingParams]]) -> None:
    law = Law(16)
    tracks = [law.open(Request("", tuple(prompt), sampling), number) for number, (prompt, sampling) in enumerate(rows)]
    lengths = [len(prompt) for prompt, _ in rows]
    law.extend(tracks, lengths)
    one_by_one = law.next_tokens(tracks, lengths)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(law_module, "_FEW_LOGITS", 0)
        assert law.next_tokens(tracks, lengths) == one_by_one


def test_a_long_track_holds_what_it_would_hold_position_by_position() -> None:
    request = Request("long", tuple(n * n % 8 for n in range(400)), adapter=Adapter("lora", 2), media=(Media("m", 90, 200),))
    at_once, in_steps = Law(8), Law(8)
    track, other = at_once.open(request, 0), in_steps.open(request, 0)
    at_once.extend([track], [400])
    for end in range(1, 401):
        in_steps.extend([other], [end])
    assert (at_once.cells([track], [400]) == in_steps.cells([other], [400])).all()
    assert track.digests == other.digests
    assert at_once.next_tokens([track], [400]) == in_steps.next_tokens([other], [400])


def test_prompts_that_part_inside_a_remembered_piece_part_in_their_cells() -> None:
    law, cold = Law(8), Law(8)
    prompts = [(1, 2, 3, 4, 5, 6, 7, 0, 1), (1, 2, 3, 4, 5, 6, 7, 1, 1), (1, 2, 3, 4, 5), (2, 2, 3, 4, 5, 6, 7, 0, 1)]
    requests = [Request("", prompt, adapter=adapter) for adapter in (None, Adapter("lora", 2)) for prompt in prompts]
    for request in (*requests, *requests):
        tracks = law.open(request, 0), cold.open(request, 0)
        law.extend([tracks[0]], [len(request.prompt)])
        cold._pieces.clear()
        cold.extend([tracks[1]], [len(request.prompt)])
        assert tracks[0].words == tracks[1].words
        assert (tracks[0].digests, tracks[0].total) == (tracks[1].digests, tracks[1].total)
