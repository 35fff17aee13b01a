"""Grammars with what they mean, over a vocabulary whose tokens have texts: what tests and suites ask an engine for.

Owns: the vocabulary, and for each grammar the language that was put together by hand beside it (`languages.py`). Never: the
library that compiles them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engine_under_test.types import GrammarKind, GrammarSpec
from properties.languages import EMPTY, Language, either, one_of, star, text, then, times

LETTERS = 'abelnorstufy01239{}[]",:-. '
PIECES = (
    "ab",
    "ba",
    "aab",
    "true",
    "alse",
    '{"',
    '{"a": ',
    '": ',
    '": "',
    '", "',
    '"}',
    "}]",
    ", ",
    "[1",
    "12",
    "10",
    "-0",
    "es",
    "no",
)
BROKEN = (b"\xc3", b"\xa9", b'\xa9"', b"a\xc3")  # of the two bytes of é
BLANK = 2  # tokens that are no text, and no stop token either
TEXTS: tuple[bytes, ...] = (
    *[letter.encode() for letter in LETTERS],
    *[piece.encode() for piece in PIECES],
    *BROKEN,
    b"a",  # once more: two tokens of one text
    *[b""] * BLANK,
    b"",
    b"b",
)
STOPS = (len(TEXTS) - 2, len(TEXTS) - 1)  # one that is no text, and one that would be the text b
VOCAB_SIZE = len(TEXTS)


@dataclass(frozen=True, slots=True)
class GrammarCase:
    """``language``: which texts `spec` allows, as far as they can be spelled with `LETTERS`, é among them."""

    spec: GrammarSpec
    language: Language


def _schema(**schema: Any) -> GrammarSpec:
    return GrammarSpec(GrammarKind.JSON_SCHEMA, (json.dumps(schema),))


def _object(properties: Mapping[str, Any], *required: str) -> GrammarSpec:
    return _schema(type="object", properties=properties, required=required, additionalProperties=False)


def _regex(source: str) -> GrammarSpec:
    return GrammarSpec(GrammarKind.REGEX, (source,))


_BOOLEAN = either(text("true"), text("false"))
_UP_TO_12 = either(one_of("01239"), text("10"), text("11"), text("12"))
_CHARACTER = either(one_of(LETTERS.replace('"', "")), text("é"))
_WORD = either(text('"a"'), text('"ab"'), text('"no"'))
_INNER = then(text('{"n": '), _UP_TO_12, text("}"))

CASES: Mapping[str, GrammarCase] = {
    "choices": GrammarCase(
        GrammarSpec(GrammarKind.CHOICE, ("yes", "no", "none", "abba", "a.b", "é", "no")),
        either(*map(text, ("yes", "no", "none", "abba", "a.b", "é"))),
    ),
    "one choice": GrammarCase(GrammarSpec(GrammarKind.CHOICE, ('{"a": [1, 2]}',)), text('{"a": [1, 2]}')),
    "a repetition": GrammarCase(
        _regex("[ab]{2,5}(-[01]+)?"),
        then(times(one_of("ab"), 2, 5), either(EMPTY, then(text("-"), one_of("01"), star(one_of("01"))))),
    ),
    "an alternative": GrammarCase(
        _regex("^a*b|b*a$"), either(then(star(text("a")), text("b")), then(star(text("b")), text("a")))
    ),
    "an ending": GrammarCase(_regex("y(es|o)?s"), then(text("y"), either(EMPTY, text("es"), text("o")), text("s"))),
    "any character": GrammarCase(_regex(".{3}"), times(either(_CHARACTER, text('"')), 3, 3)),
    "flat object": GrammarCase(
        _object({"a": {"type": "boolean"}, "b": {"enum": ["a", "ab", "no"]}}, "a", "b"),
        then(text('{"a": '), _BOOLEAN, text(', "b": '), _WORD, text("}")),
    ),
    "optional members": GrammarCase(
        _object({"a": {"enum": [0, 1]}, "b": {"const": "a"}}),
        either(
            text("{}"),
            then(text('{"a": '), one_of("01"), text("}")),
            text('{"b": "a"}'),
            then(text('{"a": '), one_of("01"), text(', "b": "a"}')),
        ),
    ),
    "array": GrammarCase(
        _schema(type="array", items={"type": "integer", "minimum": 0, "maximum": 12}, minItems=1, maxItems=3),
        then(text("["), _UP_TO_12, times(then(text(", "), _UP_TO_12), 0, 2), text("]")),
    ),
    "string": GrammarCase(_schema(type="string", maxLength=4), then(text('"'), times(_CHARACTER, 0, 4), text('"'))),
    "pattern": GrammarCase(_schema(type="string", pattern="^[ab]*y$"), then(text('"'), star(one_of("ab")), text('y"'))),
    "nested": GrammarCase(
        _schema(
            type="object",
            properties={"a": {"type": "array", "items": {"$ref": "#/$defs/inner"}, "maxItems": 2}},
            required=["a"],
            additionalProperties=False,
            **{
                "$defs": {"inner": json.loads(_object({"n": {"type": "integer", "minimum": 0, "maximum": 12}}, "n").sources[0])}
            },
        ),
        then(text('{"a": ['), either(EMPTY, then(_INNER, either(EMPTY, then(text(", "), _INNER)))), text("]}")),
    ),
    "either of two": GrammarCase(
        _schema(anyOf=[{"type": "boolean"}, {"type": "array", "items": {"const": "ab"}, "maxItems": 2}]),
        either(_BOOLEAN, text("[]"), text('["ab"]'), text('["ab", "ab"]')),
    ),
}

LANGUAGES: Mapping[GrammarSpec, Language] = {case.spec: case.language for case in CASES.values()}
