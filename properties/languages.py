"""Languages of byte strings, by derivatives: the oracle for grammars that knows no library, no tokenizer and no state.

Owns: what a grammar of a test means, put together by hand from pieces (`text`, `one_of`, `then`, `either`, `times`), and the
two questions that decide everything: is a text complete, and can it still become so? Equal languages that were made alike are
the same object, so that what was asked before is found quickly (Brzozowski, "Derivatives of regular expressions", J. ACM 11,
1964).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, reduce

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True, eq=False)
class Language:
    """``kind``: "none", "empty", "byte" (one of ``of_bytes``), "then", "or", "star"; ``parts`` of it, where it has some."""

    kind: str
    of_bytes: frozenset[int] = frozenset()
    parts: tuple[Language, ...] = ()


@lru_cache(maxsize=100_000)
def _made(kind: str, of_bytes: frozenset[int], *parts: Language) -> Language:
    return Language(kind, of_bytes, parts)


_NO_BYTES: frozenset[int] = frozenset()
NONE, EMPTY = Language("none"), Language("empty")


def one_of(characters: str) -> Language:
    """A single one of these characters, all below 0x80."""
    return _made("byte", frozenset(characters.encode("ascii")))


def any_of(is_member: npt.NDArray[np.bool_]) -> Language:
    """A single character of those whose code points are marked, in UTF-8; half surrogates are none."""
    rows = np.concatenate([is_member, np.zeros((5 << 18) - len(is_member), np.bool_)])
    rows[0xD800:0xE000] = False
    ascii_ones = _bytes_of(np.flatnonzero(rows[:0x80]))
    longer = [_led(rows, lead, 0xC0, 1, 0x80) for lead in range(2, 32)]
    longer += [_led(rows, lead, 0xE0, 2, 0x800) for lead in range(16)]
    longer += [_led(rows, lead, 0xF0, 3, 0x10000) for lead in range(5)]
    return either(ascii_ones, *longer)


def _led(rows: npt.NDArray[np.bool_], lead: int, first_byte: int, depth: int, least: int) -> Language:
    """Characters whose first byte is ``first_byte`` + ``lead``, and behind it ``depth`` others."""
    block = rows[lead << 6 * depth : (lead + 1) << 6 * depth].copy()
    block[: max(least - (lead << 6 * depth), 0)] = False
    return then(_bytes_of(np.array([first_byte + lead])), _tails(block))


def _tails(block: npt.NDArray[np.bool_]) -> Language:
    """The last bytes, of six bits each, of a whole block of code points."""
    if not block.any():
        return NONE
    if block.all():
        return then(*[_bytes_of(np.arange(0x80, 0xC0))] * (1 if len(block) == 64 else 2 if len(block) == 64**2 else 3))
    if len(block) == 64:
        return _bytes_of(np.flatnonzero(block) + 0x80)
    before: dict[Language, list[int]] = {}
    for byte, part in enumerate(block.reshape(64, -1)):
        before.setdefault(_tails(part), []).append(byte + 0x80)
    return either(*[then(_bytes_of(np.array(found)), tails) for tails, found in before.items()])


def _bytes_of(found: npt.NDArray[np.int64]) -> Language:
    return _made("byte", frozenset(found.tolist())) if len(found) else NONE


def text(characters: str) -> Language:
    """These characters, in UTF-8."""
    return then(*[_made("byte", frozenset({byte})) for byte in characters.encode()])


def then(*parts: Language) -> Language:
    """One after the other."""
    return reduce(_then, parts, EMPTY)


def either(*parts: Language) -> Language:
    """Any of these."""
    found = dict.fromkeys(each for part in parts for each in (part.parts if part.kind == "or" else (part,)))
    found.pop(NONE, None)
    return _made("or", _NO_BYTES, *found) if len(found) > 1 else next(iter(found), NONE)


def star(part: Language) -> Language:
    """As often as one likes."""
    return EMPTY if part in (NONE, EMPTY) else _made("star", _NO_BYTES, part)


def times(part: Language, least: int, most: int) -> Language:
    """From ``least`` to ``most`` times."""
    optional = EMPTY
    for _ in range(most - least):
        optional = either(EMPTY, then(part, optional))
    return then(*[part] * least, optional)


def _then(first: Language, second: Language) -> Language:
    if NONE in (first, second):
        return NONE
    if EMPTY in (first, second):
        return second if first is EMPTY else first
    if first.kind == "then":
        return _made("then", _NO_BYTES, first.parts[0], _then(first.parts[1], second))
    return _made("then", _NO_BYTES, first, second)


@lru_cache(maxsize=100_000)
def is_complete(language: Language) -> bool:
    """Whether the empty text is one of its texts."""
    if language.kind in ("empty", "star"):
        return True
    questions = (is_complete(part) for part in language.parts)
    return any(questions) if language.kind == "or" else language.kind == "then" and all(questions)


@lru_cache(maxsize=100_000)
def behind_byte(language: Language, byte: int) -> Language:
    """What may follow ``byte``; NONE if nothing begins with it. It is never empty by accident: every part has texts."""
    if language.kind == "byte":
        return EMPTY if byte in language.of_bytes else NONE
    if language.kind == "or":
        return either(*[behind_byte(part, byte) for part in language.parts])
    if language.kind == "star":
        return _then(behind_byte(language.parts[0], byte), language)
    if language.kind == "then":
        first, second = language.parts
        inside = _then(behind_byte(first, byte), second)
        return either(inside, behind_byte(second, byte)) if is_complete(first) else inside
    return NONE


def behind(language: Language, of_text: bytes) -> Language:
    """What may follow a text; NONE if none of the language's texts begins with it."""
    return reduce(behind_byte, of_text, language)


def allowed(language: Language, texts: Sequence[bytes], output: Sequence[int], ends: Collection[int]) -> frozenset[int]:
    """The tokens that may follow an output: those with which it can still become a text of the language; where it is one, those
    of ``ends``, which are no text and behind which only they follow."""
    if any(token in ends for token in output):
        return frozenset(ends)
    left = behind(language, b"".join([texts[token] for token in output]))
    may_follow = {
        token for token, of_text in enumerate(texts) if of_text and token not in ends and behind(left, of_text) != NONE
    }
    if any(not texts[token] for token in output):
        return frozenset(ends)
    return frozenset(may_follow | set(ends)) if is_complete(left) else frozenset(may_follow)


def wrong_output(
    language: Language, texts: Sequence[bytes], output: Sequence[int], ends: Collection[int], *, is_complete_now: bool
) -> str | None:
    """What is wrong with an output, which claims to be complete, its stop token being its last one, or not to be; or None."""
    words = output[:-1] if is_complete_now else output
    if is_complete_now and (not output or output[-1] not in ends):
        return f"it was stopped, but by no stop token: {list(output)}"
    if any(token in ends for token in words):
        return f"it goes on behind a stop token: {list(output)}"
    if blank := [token for token in words if not texts[token]]:
        return f"it holds tokens that are no text: {blank}"
    spoken = b"".join([texts[token] for token in words])
    left = behind(language, spoken)
    if left == NONE:
        return f"no text of the grammar begins with {spoken!r}"
    if is_complete_now and not is_complete(left):
        return f"it was stopped at {spoken!r}, which is no text of the grammar"
    return None


def shortest(language: Language) -> bytes:
    """A text of the language, among the shortest the first; for whoever wants to see it can be completed."""
    reached: dict[Language, bytes] = {language: b""}
    for found in _breadth_first(reached):
        if is_complete(found):
            return reached[found]
    raise ValueError("a language must have a text, found none")


def _breadth_first(reached: dict[Language, bytes]) -> Iterator[Language]:
    queue = list(reached)
    for found in queue:
        yield found
        for byte in range(256):
            following = behind_byte(found, byte)
            if following != NONE and following not in reached:
                reached[following] = reached[found] + bytes([byte])
                queue.append(following)
