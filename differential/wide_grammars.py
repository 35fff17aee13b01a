"""Grammars about characters beyond a few letters: classes of all of Unicode, both cases, what JSON lets a string hold; over a
vocabulary of every byte, words in both cases, and digits, letters and signs of other scripts.

Owns the vocabulary, and what each grammar means at the least and at the most: the two differ where a newer Unicode may know
more than this Python's tables (unassigned ones, and all from plane 2 on), and where JSON may spell a character in two ways.
Never: the library that compiles them, or a judgement (`grammar_masks.py`).
"""

from __future__ import annotations

import json
import random
import unicodedata
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from engine_under_test.types import GrammarKind, GrammarSpec
from properties.languages import Language, any_of, either, one_of, text, then, times

_SIGNS = (
    *"éÉßẞſ\u212aβΩ\u2126中ŸÿⅧ①²½\u0301\u200d\u0663\u0967\uff15\u00a0\u2028\u3000€…",
    *("\U0001d7d7", "\U0001f600", "\U00010400"),
)
_PIECES = ("Yes", "yes", "YES", "No", "NO", "no", "sky", "SKY", '"A', '"a', "1a", "Aé", "9\u0663", '": ', "\\n", "\\u00")
WIDE_TEXTS: tuple[bytes, ...] = (
    *[bytes([byte]) for byte in range(256)],
    *[piece.encode() for piece in (*_SIGNS, *_PIECES)],
    b"\xa9\xc3",
    b"a\xd9",
    b"",
)
WIDE_STOPS = (len(WIDE_TEXTS) - 1,)
_KNOWN = 0x20000  # code points below it are looked up, all others may be anything
_HEX = one_of("0123456789abcdefABCDEF")
_DIGITS, _WORDS = one_of("0123456789"), one_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_")
_SPACES = (*range(9, 14), 32, 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B), 0x2028, 0x2029, 0x202F, 0x205F, 0x3000)
# Alphabetic, or joining, though of no category of letters (Unicode, DerivedCoreProperties and PropList).
_OF_WORDS_TOO = ((0x200C, 0x200E), (0x24B6, 0x24EA), (0x1F130, 0x1F14A), (0x1F150, 0x1F16A), (0x1F170, 0x1F18A))
_NAMES = ("Yes", "No", "yEs", "Straße", "ſky", "Key", "\u212aey", "Ωmega", "ÉTÉ", "été", "aBc", "x²", "I", "ı", "中A")


@dataclass(frozen=True, slots=True)
class WideCase:
    """``least``: the texts that `spec` allows in any case; ``most``: those that it may allow."""

    spec: GrammarSpec
    least: Language
    most: Language


@lru_cache
def _classes() -> Mapping[str, tuple[Language, Language]]:
    """Classes of characters as Unicode has them (UTS #18, annex C), at the least and at the most."""
    categories = [unicodedata.category(chr(point)) for point in range(_KNOWN)]
    known = np.array([each != "Cn" for each in categories])
    words = np.array([each[0] in "LM" or each in ("Nd", "Nl", "Pc") for each in categories])
    for begin, end in _OF_WORDS_TOO:
        words[begin:end] = True
    digits = np.array([each == "Nd" for each in categories])
    spaces = np.zeros(_KNOWN, np.bool_)
    spaces[list(_SPACES)] = True
    small, line = np.zeros(0x110000, np.bool_), np.zeros(0x110000, np.bool_)
    small[ord("a") : ord("z") + 1], line[ord("\n")] = True, True
    return {
        "\\d": _bounds(digits, known),
        "\\w": _bounds(words, known),
        "\\s": (any_of(spaces),) * 2,
        "\\D": _bounds(~digits, known),
        "\\W": _bounds(~words, known),
        "[^a-z]": (any_of(~small),) * 2,
        ".": (any_of(~line),) * 2,
    }


def _bounds(members: npt.NDArray[np.bool_], known: npt.NDArray[np.bool_]) -> tuple[Language, Language]:
    most = np.ones(0x110000, np.bool_)
    most[:_KNOWN] = members | ~known
    return any_of(members & known), any_of(most)


@lru_cache
def _string_characters() -> tuple[Language, Language]:
    """What stands in a string of JSON (RFC 8259, section 7): escapes are a second way, and DEL need not stand by itself."""
    plain = np.ones(0x110000, np.bool_)
    plain[:0x20], plain[[ord('"'), ord("\\")]] = False, False
    most = any_of(plain)
    plain[0x7F] = False
    escapes = either(*[text("\\" + letter) for letter in '"\\bfnrt/'], then(text("\\u"), times(_HEX, 4, 4)))
    return any_of(plain), either(most, escapes)


def wide_cases(chance: random.Random) -> Iterator[WideCase]:
    """One of every kind, each made anew."""
    for name, (least, most) in _classes().items():
        lead, more = chance.choice(("", "x", "é")), chance.randint(0, 1)
        spec = GrammarSpec(GrammarKind.REGEX, (f"{lead}{name}{{1,{1 + more}}}",))
        yield WideCase(spec, *[then(text(lead), times(each, 1, 1 + more)) for each in (least, most)])
    for _ in range(2):
        words = tuple(chance.sample(_NAMES, chance.randint(1, 4)))
        yield _exactly(GrammarKind.CHOICE, words, either(*map(text, words)))
    folded = then(either(one_of("sS"), text("ſ")), either(one_of("kK"), text("\u212a")), one_of("yY"))
    yield _exactly(GrammarKind.REGEX, ("(?i:sky)",), folded)
    yield _exactly(GrammarKind.REGEX, ("|".join(words),), either(*map(text, words)))
    yield from _schemas(chance)


def _schemas(chance: random.Random) -> Iterator[WideCase]:
    names = chance.sample(_NAMES, 3)
    written = [text(json.dumps(name, ensure_ascii=False)) for name in names]
    yield _schema({"enum": names}, either(*written))
    member = then(text("{"), written[0], text(": true}"))
    whole = {"type": "object", "properties": {names[0]: {"const": True}}, "required": names[:1], "additionalProperties": False}
    yield _schema(whole, member)
    # In a schema, classes are those of ECMA-262: of ASCII alone.
    yield _schema({"type": "string", "pattern": "^\\d\\w$"}, then(text('"'), _DIGITS, _WORDS, text('"')))
    least, most = _string_characters()
    length = chance.randint(1, 2)
    bounds = [then(text('"'), times(each, 0, length), text('"')) for each in (least, most)]
    yield WideCase(_of_schema({"type": "string", "maxLength": length}), *bounds)


def _schema(schema: Mapping[str, Any], language: Language) -> WideCase:
    return WideCase(_of_schema(schema), language, language)


def _of_schema(schema: Mapping[str, Any]) -> GrammarSpec:
    return GrammarSpec(GrammarKind.JSON_SCHEMA, (json.dumps(schema),))


def _exactly(kind: GrammarKind, sources: tuple[str, ...], language: Language) -> WideCase:
    return WideCase(GrammarSpec(kind, sources), language, language)
