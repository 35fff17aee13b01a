"""Grammars made at random, each with what it means: regular expressions, JSON schemas and choices, for whoever compares masks.

Some come as relatives: they share a first source, a beginning, an end, or all of their text but for the kind, and mean
different things; others share these and can not be used at all.

Owns the making. The meaning is put together beside the text, never read from it. Never: a judgement (`grammar_masks.py`).
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Sequence
from typing import Any

import jsonschema

from engine_under_test.types import GrammarKind, GrammarSpec
from properties.grammar_cases import GrammarCase
from properties.languages import EMPTY, Language, either, one_of, star, text, then, times

_LETTERS = "abelnorstufy01239"
_SIGNS = '{}[]",:-. '
_WORDS = ("true", "no", "ab", "es", "é", "a.b", "[1", "", "y, no")


def made(chance: random.Random) -> GrammarCase:
    """One grammar of any kind."""
    make = chance.choice((_expression, _schema, _choices))
    return make(chance)


def related(chance: random.Random) -> tuple[tuple[GrammarCase, ...], GrammarSpec]:
    """Two grammars that have much in common, and one that shares the first source of the first and must be refused."""
    make = chance.choice((_of_one_first_word, _of_one_text, _of_one_beginning))
    both = make(chance)
    spec = both[0].spec
    wrong = "" if spec.kind is GrammarKind.CHOICE else spec.sources[0]
    return tuple(chance.sample(both, 2)), GrammarSpec(spec.kind, (*spec.sources, wrong))


def _of_one_first_word(chance: random.Random) -> tuple[GrammarCase, ...]:
    """Choices that begin with the same one, or that are the same letters, cut into words elsewhere."""
    first, second, third = [_word(chance) for _ in range(3)]
    others = ((first, third), (first,), (first + second,), (first + second[:-1], second[-1]))
    return _of_words((first, second)), _of_words(chance.choice(others))


def _of_one_text(chance: random.Random) -> tuple[GrammarCase, ...]:
    """One text as an expression or a schema, and as the one choice that there is; no vocabulary spells all of such schemas."""
    if chance.random() < 0.3:
        case = _schema(chance)
        return case, _of_words(case.spec.sources)
    word, letters = "".join(chance.choices(_LETTERS, k=chance.randint(1, 4))), "".join(chance.sample(_LETTERS, 3))
    source = f"{word}[{letters}]"
    return GrammarCase(GrammarSpec(GrammarKind.REGEX, (source,)), then(text(word), one_of(letters))), _of_words((source,))


def _of_one_beginning(chance: random.Random) -> tuple[GrammarCase, ...]:
    """Expressions or schemas that are alike for long, at the beginning or at the end."""
    if chance.random() < 0.5:
        word = "".join(chance.choices(_LETTERS, k=chance.choice((20, 70))))
        parts = [_piece(chance, 2) for _ in range(2)]
        if chance.random() < 0.5:
            cases = [(f"{word}|{source}", either(text(word), language)) for source, language in parts]
        else:
            cases = [(f"{source}|{word}", either(language, text(word))) for source, language in parts]
        return tuple(GrammarCase(GrammarSpec(GrammarKind.REGEX, (source,)), language) for source, language in cases)
    told = {"description": "x" * chance.choice((20, 300))}
    is_first, found = chance.random() < 0.5, []
    for schema, language in [_value(chance, 2) for _ in range(2)]:
        written = json.dumps({**told, **schema} if is_first else {**schema, **told})
        found.append(GrammarCase(GrammarSpec(GrammarKind.JSON_SCHEMA, (written,)), language))
    return tuple(found)


def _of_words(words: Sequence[str]) -> GrammarCase:
    return GrammarCase(GrammarSpec(GrammarKind.CHOICE, tuple(words)), either(*map(text, words)))


def misfit(spec: GrammarSpec, spoken: bytes) -> str | None:
    """What Python's own libraries say against a complete text: `re` and `jsonschema`, neither of which the engine knows."""
    try:
        said = spoken.decode()
    except UnicodeDecodeError:
        return f"{spoken!r} is not UTF-8"
    source = spec.sources[0]
    if spec.kind is GrammarKind.CHOICE:
        return None if said in spec.sources else f"{said!r} is none of the choices"
    if spec.kind is GrammarKind.REGEX:
        return None if re.fullmatch(source, said) else f"{said!r} does not match {source!r}"
    try:
        jsonschema.validate(json.loads(said), json.loads(source))
    except ValueError as error:
        return f"{said!r} is no JSON: {error}"
    except jsonschema.ValidationError as error:
        return f"{said!r} does not fit its schema: {error.message}"
    return None


def _choices(chance: random.Random) -> GrammarCase:
    return _of_words([_word(chance) for _ in range(3)])


def _word(chance: random.Random) -> str:
    return chance.choice(_WORDS) + "".join(chance.choices(_LETTERS + _SIGNS, k=chance.randint(1, 4)))


def _expression(chance: random.Random) -> GrammarCase:
    source, language = _piece(chance, 3)
    return GrammarCase(GrammarSpec(GrammarKind.REGEX, (source,)), language)


def _piece(chance: random.Random, depth: int) -> tuple[str, Language]:
    """An expression, in brackets where others may stand beside it, and its language."""
    kind = (
        chance.choice(("text", "set", "many")) if depth == 0 else chance.choice(("text", "set", "then", "or", "many", "some"))
    )
    if kind == "text":
        word = chance.choice(_WORDS) or chance.choice(_SIGNS)
        return f"(?:{re.escape(word)})", text(word)
    if kind == "set":
        letters = "".join(chance.sample(_LETTERS, 4))
        return f"[{letters}]", one_of(letters)
    parts = [_piece(chance, depth - 1) for _ in range(2)] if depth else [_piece_of_set(chance)] * 2
    (one, first), (other, second) = parts
    if kind == "then":
        return f"{one}{other}", then(first, second)
    if kind == "or":
        return f"(?:{one}|{other})", either(first, second)
    if kind == "some":
        least, more = chance.randint(0, 2), chance.randint(0, 2)
        return f"(?:{one}){{{least},{least + more}}}", times(first, least, least + more)
    return f"(?:{one})*", star(first)


def _piece_of_set(chance: random.Random) -> tuple[str, Language]:
    letters = "".join(chance.sample(_LETTERS, 2))
    return f"[{letters}]", one_of(letters)


def _schema(chance: random.Random) -> GrammarCase:
    schema, language = _value(chance, 2)
    return GrammarCase(GrammarSpec(GrammarKind.JSON_SCHEMA, (json.dumps(schema),)), language)


def _value(chance: random.Random, depth: int) -> tuple[dict[str, Any], Language]:
    kind = chance.choice(
        ("constant", "boolean", "word", "array", "object", "any") if depth else ("constant", "boolean", "word")
    )
    if kind == "constant":
        values = chance.sample([True, False, None, 0, 12, 390, "a", "no", "é", "a.b", "y, n"], 3)
        return {"enum": values}, either(*[text(json.dumps(value, ensure_ascii=False)) for value in values])
    if kind == "boolean":
        return {"type": "boolean"}, either(text("true"), text("false"))
    if kind == "word":
        least, letters = chance.randint(0, 2), "".join(chance.sample("abelnorst", 4))
        language = then(text('"'), times(one_of(letters), least, least + 2), text('"'))
        return {"type": "string", "pattern": f"^[{letters}]{{{least},{least + 2}}}$"}, language
    if kind == "array":
        (schema, item), least = _value(chance, depth - 1), chance.randint(0, 1)
        more = times(then(text(", "), item), 0, 2)
        some = then(text("["), item, more, text("]"))
        whole = {"type": "array", "items": schema, "minItems": least, "maxItems": 3}
        return whole, some if least else either(text("[]"), some)
    if kind == "any":
        schemas, languages = zip(*[_value(chance, depth - 1) for _ in range(2)], strict=True)
        return {"anyOf": list(schemas)}, either(*languages)
    return _object(chance, depth)


def _object(chance: random.Random, depth: int) -> tuple[dict[str, Any], Language]:
    names = chance.sample(("a", "b", "no", "es"), chance.randint(1, 3))
    members = {name: _value(chance, depth - 1) for name in names}
    required = [name for name in names if chance.random() < 0.6]
    schema = {
        "type": "object",
        "properties": {name: schema for name, (schema, _) in members.items()},
        "required": required,
        "additionalProperties": False,
    }
    written = [(name in required, then(text(f'"{name}": '), language)) for name, (_, language) in members.items()]
    return schema, then(text("{"), _members(written, is_first=True), text("}"))


def _members(left: Sequence[tuple[bool, Language]], *, is_first: bool) -> Language:
    """In the order of the schema, some of them left out."""
    if not left:
        return EMPTY
    (is_required, member), *others = left
    here = then(EMPTY if is_first else text(", "), member, _members(others, is_first=False))
    return here if is_required else either(here, _members(others, is_first=is_first))
