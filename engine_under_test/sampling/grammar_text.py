"""From a `GrammarSpec` to the words of the library that compiles it, or the sentence that says why not.

Owns: what the three kinds mean, and what is checked beforehand. Never: compiling (`grammar_trial.py`, `grammar.py`).

- A JSON schema: one line of JSON, with ", " and ": " and no other space outside of strings, as Python's `json.dumps` writes;
  a model that may write spaces wherever JSON has them is often never done with them.
- A regular expression: the syntax of Rust's `regex` crate without look-around; the whole text matches, and `^` and `$` may
  stand at its ends. Characters are those of Unicode, `.` is any but a line feed.
- Choices: one of them, to the letter.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NoReturn

from engine_under_test.types import GrammarKind, GrammarSpec

_LAYOUT = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
# Otherwise, where only one text can follow, only the token with which a tokenizer would spell it is allowed.
_EVERY_SPELLING = '%llguidance {"no_forcing": true}\n'


class CanNotBeUsed(Exception):
    """Why a grammar can not be used; the message is what was found and what to do."""


def text_of(spec: GrammarSpec, most_bytes: int) -> str:
    """The grammar in the library's words. Raises CanNotBeUsed."""
    if not isinstance(spec, GrammarSpec) or not isinstance(spec.kind, GrammarKind) or type(spec.sources) is not tuple:
        raise CanNotBeUsed(f"a grammar must be a `GrammarSpec` of a `GrammarKind` and a tuple, found {spec!r}; correct it")
    if not spec.sources or not all(type(source) is str for source in spec.sources):
        raise CanNotBeUsed(f"a grammar must have sources that are text, found {spec.sources!r}; write them down")
    if spec.kind is not GrammarKind.CHOICE and len(spec.sources) != 1:
        raise CanNotBeUsed(f"a {_NAMES[spec.kind]} must be one text, found {len(spec.sources)}; leave the others away")
    size = sum(len(source) for source in spec.sources)
    if size > most_bytes:
        raise CanNotBeUsed(f"a {_NAMES[spec.kind]} must have at most {most_bytes} characters, found {size}; make it smaller")
    for source in spec.sources:
        if any("\ud800" <= character <= "\udfff" for character in source):
            raise CanNotBeUsed(f"a {_NAMES[spec.kind]} must be Unicode, found half a surrogate pair; remove it")
    return _EVERY_SPELLING + _TEXTS[spec.kind](spec.sources)


def name_of(spec: GrammarSpec) -> str:
    """What people call its kind."""
    return _NAMES[spec.kind]


def _of_schema(sources: tuple[str, ...]) -> str:
    try:
        schema = json.loads(sources[0], parse_constant=_refuse_constant)
    except RecursionError:
        raise CanNotBeUsed("a JSON schema must not be nested so deeply; make it flatter") from None
    except ValueError as error:
        raise CanNotBeUsed(f"a JSON schema must be JSON, but it is not: {error}; correct it") from None
    if schema is True:
        schema = {}
    if not isinstance(schema, dict):
        raise CanNotBeUsed(f"a JSON schema must be an object that some JSON fits, found {_shown(sources[0])}; write one")
    return f"start: %json {_written({**schema, 'x-guidance': _LAYOUT})}"


def _written(schema: dict[str, Any]) -> str:
    try:
        return json.dumps(schema)
    except RecursionError:
        raise CanNotBeUsed("a JSON schema must not be nested so deeply; make it flatter") from None


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


def _of_regex(sources: tuple[str, ...]) -> str:
    from llguidance import regex_to_lark

    return f"start: /{regex_to_lark(sources[0], use_ascii='') or '(?:)'}/"


def _of_choices(sources: tuple[str, ...]) -> str:
    if "" in sources:
        raise CanNotBeUsed("choices must be of at least one character, found ''; leave it away")
    spelled = ["".join(map(_letter, source)) for source in sources]
    return f"start: /{'|'.join(spelled)}/"


def _letter(character: str) -> str:
    """One character as a regular expression."""
    is_plain = character.isascii() and character.isalnum()
    return character if is_plain else f"\\x{{{ord(character):x}}}"


def _shown(text: str) -> str:
    return repr(text if len(text) <= 60 else f"{text[:60]}…")


_NAMES = {
    GrammarKind.JSON_SCHEMA: "JSON schema",
    GrammarKind.REGEX: "regular expression",
    GrammarKind.CHOICE: "list of choices",
}
_TEXTS: dict[GrammarKind, Callable[[tuple[str, ...]], str]] = {
    GrammarKind.JSON_SCHEMA: _of_schema,
    GrammarKind.REGEX: _of_regex,
    GrammarKind.CHOICE: _of_choices,
}
