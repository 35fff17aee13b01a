"""The text that a reader sees: the same however it came apart into tokens, cut at stop strings, never taken back."""

from __future__ import annotations

import codecs
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

import pytest

from engine_under_test import BadInput, Engine, EngineConfig, FinishReason, Request, SamplingParams
from engine_under_test.text import StopStrings, TextDelta, TextEngine
from properties.scripted import END, ScriptedRunner


class ByteStream:
    """Bytes to text, incomplete characters held back."""

    def __init__(self, pieces: Sequence[bytes]) -> None:
        self._pieces = pieces
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token: int) -> str:
        return self._decoder.decode(self._pieces[token])

    def end(self) -> str:
        return self._decoder.decode(b"", final=True)


class Pieces:
    """A tokenizer whose tokens are given pieces of bytes; token 0 ends a text."""

    stop_token_ids = (END,)

    def __init__(self, pieces: Sequence[bytes]) -> None:
        self.pieces = (b"", *pieces)

    def encode(self, text: str) -> tuple[int, ...]:
        return tuple(self.pieces.index(bytes([byte])) for byte in text.encode())

    def chat(self, messages: Sequence[Mapping[str, str]]) -> tuple[int, ...]:
        return self.encode("".join(message["content"] for message in messages))

    def stream(self) -> ByteStream:
        return ByteStream(self.pieces)


def splits(data: bytes) -> Iterator[list[bytes]]:
    """Every way to take `data` apart."""
    for cuts in range(2 ** (len(data) - 1)):
        places = [0, *(place for place in range(1, len(data)) if cuts >> (place - 1) & 1), len(data)]
        yield [data[begin:end] for begin, end in pairwise(places)]


def plain_text(text: str, stops: Sequence[str]) -> str:
    """The definition: character by character until a stop string is complete; the longest that ends there is cut off."""
    for end in range(1, len(text) + 1):
        complete = [stop for stop in stops if text[:end].endswith(stop)]
        if complete:
            return text[: end - max(map(len, complete))]
    return text


def shown(text: str, chunks: Sequence[str], stops: Sequence[str]) -> str:
    watch = StopStrings(stops)
    found = ""
    for chunk in chunks:
        found += watch.push(chunk)
        assert plain_text(text, stops).startswith(found), "nothing is shown that must be taken back"
    return found + watch.end()


STOPS = {
    "none": (),
    "one that does not come": ("xyz",),
    "one that almost comes": ("aaab", "bab"),
    "at the beginning": ("aa",),
    "one character": ("b",),
    "the end": ("ab!",),
    "the whole": ("aabcab!",),
    "one inside another": ("bcab", "c"),
    "one that begins first but ends last": ("abcab", "bc"),
    "two that end together": ("cab", "ab", "b!"),
    "longer than the text": ("aabcab!?",),
}


@pytest.mark.parametrize("stops", STOPS.values(), ids=STOPS.keys())
def test_the_text_does_not_depend_on_how_it_comes_apart(stops: tuple[str, ...]) -> None:
    text = "aabcab!"
    for pieces in splits(text.encode()):
        assert shown(text, [piece.decode() for piece in pieces], stops) == plain_text(text, stops)


def test_every_part_of_a_text_ends_it_as_a_stop_string() -> None:
    text = "abacabad"
    for begin in range(len(text)):
        for end in range(begin + 1, len(text) + 1):
            stops = (text[begin:end],)
            for chunks in (list(text), [text], [text[:end], text[end:]], [text[:begin], text[begin:end], text[end:]]):
                assert shown(text, chunks, stops) == plain_text(text, stops)


def test_only_what_a_stop_string_may_begin_with_is_held_back() -> None:
    watch = StopStrings(("###", "\n\nQ"))
    assert [watch.push(one) for one in ("one", " #", "# two", "\n", "\nA", "#")] == ["one", " ", "## two", "", "\n\nA", ""]
    assert watch.end() == "#"


def run(
    scripts: Sequence[Sequence[bytes]], stop: Sequence[str] = (), *, max_tokens: int = 64, depth: int = 0
) -> dict[int, list[TextDelta]]:
    """Each choice says its pieces; what a reader is told of each."""
    pieces = sorted({piece for script in scripts for piece in script} | {b"?"})
    tokenizer = Pieces(pieces)
    config = EngineConfig(
        num_blocks=64, block_size=4, max_tokens_per_step=16, max_num_seqs=4, vocab_size=512, max_plans_in_flight=1 + depth
    )
    engine = Engine(config, ScriptedRunner({"a": [[tokenizer.pieces.index(piece) for piece in script] for script in scripts]}))
    front = TextEngine(engine, tokenizer)
    assert front.submit("??", SamplingParams(max_tokens=max_tokens, n=len(scripts)), stop, request_id="a").is_accepted
    found: dict[int, list[TextDelta]] = {}
    for delta in front.stream():
        found.setdefault(delta.choice, []).append(delta)
    for _ in range(8):
        assert front.step() == ()
    assert not engine.has_work
    assert set(engine.snapshot().ref_counts or ()) == {0}
    return found


def text_of(deltas: Sequence[TextDelta]) -> str:
    return "".join(delta.text for delta in deltas)


@pytest.mark.parametrize("depth", [0, 2])
@pytest.mark.parametrize("stop", [(), ("é",), ("b😀",), ("😀c", "zz")], ids=["no stop", "a character", "two", "one of two"])
def test_through_the_engine_every_split_of_the_bytes_gives_the_same_text(stop: tuple[str, ...], depth: int) -> None:
    text = "aéb😀c"
    for number, pieces in enumerate(splits(text.encode())):
        if number % 5 and depth:
            continue
        deltas = run([pieces], stop, depth=depth)[0]
        assert text_of(deltas) == plain_text(text, stop)
        assert [delta.finish_reason for delta in deltas[:-1]] == [None] * (len(deltas) - 1)
        assert deltas[-1].finish_reason is FinishReason.STOP


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_a_stop_string_ends_its_own_choice_and_no_other(depth: int) -> None:
    scripts = [[b"one", b" st", b"op", b" more"], [b"two", b" goes", b" on", b" and on"], [b"sto", b"p", b"3", b"4"]]
    found = run(scripts, ("stop",), depth=depth)
    assert {choice: text_of(deltas) for choice, deltas in found.items()} == {0: "one ", 1: "two goes on and on", 2: ""}
    assert all(deltas[-1].finish_reason is FinishReason.STOP for deltas in found.values())
    assert [found[choice][-1].num_tokens for choice in range(3)] == [3, 5, 2]


def test_at_the_length_limit_what_was_held_back_is_shown() -> None:
    deltas = run([[b"a", b"#", b"#", b"x"]], ("###",), max_tokens=3)[0]
    assert text_of(deltas) == "a##"
    assert deltas[-1].finish_reason is FinishReason.LENGTH


def test_half_a_character_at_the_end_is_shown_as_unreadable() -> None:
    assert text_of(run([[b"a", "é".encode()[:1]]])[0]) == "a\N{REPLACEMENT CHARACTER}"


def test_the_last_token_that_completes_a_stop_string_ends_by_it() -> None:
    deltas = run([[b"a", b"b"]], ("b",), max_tokens=2)[0]
    assert (text_of(deltas), deltas[-1].finish_reason) == ("a", FinishReason.STOP)


def test_an_abort_ends_every_choice_and_shows_what_was_held_back() -> None:
    tokenizer = Pieces((b"?", b"#"))
    config = EngineConfig(num_blocks=64, block_size=4, max_tokens_per_step=16, max_num_seqs=4, vocab_size=16)
    front = TextEngine(Engine(config, ScriptedRunner({"a": [[2, 1, 2, 2, 2]] * 2})), tokenizer)
    front.submit("??", SamplingParams(n=2), ("##",), request_id="a")
    told = [delta for _ in range(4) for delta in front.step()]
    assert front.abort("a")
    told += front.stream()
    assert {choice: text_of([one for one in told if one.choice == choice]) for choice in (0, 1)} == {0: "#?#", 1: "#?#"}
    assert [one.finish_reason for one in told[-2:]] == [FinishReason.ABORT] * 2


@pytest.mark.parametrize("stop", [("",), ("a", 3), "ab"], ids=["an empty one", "a number", "one string for a list"])
def test_what_is_no_stop_string_is_refused(stop: Sequence[str]) -> None:
    front = TextEngine(Engine(EngineConfig(), ScriptedRunner({})), Pieces((b"?",)))
    with pytest.raises(BadInput, match="stop strings"):
        front.submit("?", stop=stop)
    assert not front.has_work


def test_a_refused_text_is_not_waited_for() -> None:
    front = TextEngine(Engine(EngineConfig(), ScriptedRunner({})), Pieces((b"?",)))
    assert not front.submit("").is_accepted
    assert not front.has_work


def test_a_choice_without_a_token_can_not_be_stopped() -> None:
    engine = Engine(EngineConfig(), ScriptedRunner({"a": [[1, 1]] * 2}))
    engine.submit(Request("a", (1, 2), SamplingParams(n=2)))
    assert not engine.stop_choice("a", 0)
    assert not engine.stop_choice("a", 1)
    assert not engine.stop_choice("b", 0)
    engine.step()
    engine.step()
    assert not engine.stop_choice("a", 1, 2), "the second request of that name has not come yet"
    assert engine.stop_choice("a", 1, 1)
    assert not engine.stop_choice("a", 1)
    assert engine.has_work
