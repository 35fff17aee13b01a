"""Keywords of JSON Schema, each with values that fit and values that miss by a little: what it asks for must hold in every
complete text, or the schema must be refused; nothing is left out in silence.

Owns the table and how a schema is wrapped into others. What fits is said by `jsonschema`, never by this table alone; never a
judgement (`grammar_masks.py`). Keywords: JSON Schema 2020-12, Core and Validation; draft 7 where a schema says so.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jsonschema

from engine_under_test.types import GrammarKind, GrammarSpec

_DRAFT_7 = "http://json-schema.org/draft-07/schema#"
_Schema = Mapping[str, Any]
_Row = tuple[str, _Schema, Sequence[Any]]  # a keyword, a schema, values, some of which miss


@dataclass(frozen=True, slots=True)
class KeywordCase:
    """``values``: each as it is written, and why it does not fit the schema, or None."""

    keyword: str
    spec: GrammarSpec
    values: tuple[tuple[str, str | None], ...]


def keyword_cases(chance: random.Random) -> Iterator[KeywordCase]:
    """One of every keyword, with numbers of its own, alone or inside of another schema."""
    for keyword, schema, values in _table(chance):
        wrap, put = chance.choice(_WRAPPINGS) if "$ref" not in str(schema) and "$schema" not in schema else _WRAPPINGS[0]
        whole = wrap(schema)
        judge = jsonschema.validators.validator_for(whole, jsonschema.Draft202012Validator)
        validator = judge(whole, format_checker=judge.FORMAT_CHECKER)
        told = [(json.dumps(put(value), ensure_ascii=False), _why_not(validator, put(value))) for value in values]
        yield KeywordCase(keyword, GrammarSpec(GrammarKind.JSON_SCHEMA, (json.dumps(whole),)), tuple(told))


def _why_not(validator: Any, value: Any) -> str | None:
    error = jsonschema.exceptions.best_match(validator.iter_errors(value))
    return None if error is None else str(error.message)


def _same(value: Any) -> Any:
    return value


_WRAPPINGS: tuple[tuple[Callable[[_Schema], dict[str, Any]], Callable[[Any], Any]], ...] = (
    (dict, _same),
    (
        lambda schema: {"type": "object", "properties": {"v": schema}, "required": ["v"], "additionalProperties": False},
        lambda value: {"v": value},
    ),
    (lambda schema: {"type": "array", "items": schema, "minItems": 1}, lambda value: [value]),
    (lambda schema: {"anyOf": [{"const": "another"}, schema]}, _same),
    (lambda schema: {"$ref": "#/$defs/d", "$defs": {"d": schema}}, _same),
)


def _table(chance: random.Random) -> tuple[_Row, ...]:
    return (*_of_numbers(chance), *_of_strings(chance), *_of_arrays(chance), *_of_objects(chance), *_of_any(chance))


def _of_numbers(chance: random.Random) -> tuple[_Row, ...]:
    n = chance.randint(2, 9)
    near = (n - 1, n, n + 1, 0, -n, 2 * n, 2 * n + 1, 3 * n - 1)
    return (
        ("multipleOf", {"type": "integer", "multipleOf": n}, near),
        ("multipleOf of a number", {"type": "number", "multipleOf": 0.5}, (n, n + 0.5, n + 0.25)),
        ("maximum", {"type": "integer", "maximum": n}, near),
        ("exclusiveMaximum", {"type": "integer", "exclusiveMaximum": n}, near),
        ("minimum", {"type": "integer", "minimum": n}, near),
        ("exclusiveMinimum", {"type": "integer", "exclusiveMinimum": n}, near),
        ("exclusiveMinimum of a number", {"type": "number", "exclusiveMinimum": n}, (n - 0.5, n, n + 0.5)),
        ("bounds without a type", {"minimum": n, "maximum": n + 2}, (*near, n + 2, n + 3, "a", None)),
    )


def _of_strings(chance: random.Random) -> tuple[_Row, ...]:
    n = chance.randint(1, 4)
    words = ("", *["é" + "a" * (length - 1) for length in (n - 1, n, n + 1) if length])
    return (
        ("maxLength", {"type": "string", "maxLength": n}, words),
        ("minLength", {"type": "string", "minLength": n}, words),
        ("pattern", {"type": "string", "pattern": "^[a-c]+$"}, ("a", "cab", "", "ad", "A")),
        ("pattern that may stand inside", {"type": "string", "pattern": "b"}, ("b", "abc", "", "ac")),
        ("format date", {"type": "string", "format": "date"}, ("2024-05-17", "2024-13-01", "17.5.2024", "")),
        ("format ipv4", {"type": "string", "format": "ipv4"}, ("10.0.0.1", "10.0.0.256", "10.0.0")),
        ("format uuid", {"type": "string", "format": "uuid"}, ("12345678-1234-4234-8234-123456789abc", "12345678", "")),
        ("format unknown", {"type": "string", "format": f"of-{n}"}, ("a",)),
    )


def _of_arrays(chance: random.Random) -> tuple[_Row, ...]:
    n = chance.randint(1, 3)
    arrays: tuple[list[Any], ...] = ([1] * (n - 1), [1] * n, [1] * (n + 1), [1, 2, 3][:n], ["a"], [1, "a"], [], [2, 1])
    whole = {"type": "array", "items": {"type": ["integer", "string"]}}
    return (
        ("maxItems", {**whole, "maxItems": n}, arrays),
        ("minItems", {**whole, "minItems": n}, arrays),
        ("uniqueItems", {**whole, "uniqueItems": True}, ([1, 1], [1, 2], ["a", "a"], [])),
        ("contains", {**whole, "contains": {"const": n}}, ([n], [n + 1], [])),
        ("minContains", {**whole, "contains": {"const": n}, "minContains": 2}, ([n], [n, n], [])),
        ("maxContains", {**whole, "contains": {"const": n}, "maxContains": 1}, ([n], [n, n])),
        ("prefixItems", {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}], "items": False}, arrays),
        ("items behind others", {"type": "array", "prefixItems": [{"const": n}], "items": {"const": "a"}}, ([n, "a"], [n, n])),
        ("additionalItems", {"$schema": _DRAFT_7, "items": [{"type": "integer"}], "additionalItems": False}, ([1], [1, 1])),
        ("unevaluatedItems", {"type": "array", "prefixItems": [{"type": "integer"}], "unevaluatedItems": False}, ([1], [1, 1])),
    )


def _of_objects(chance: random.Random) -> tuple[_Row, ...]:
    n = chance.randint(1, 2)
    objects: tuple[dict[str, Any], ...] = ({}, {"a": 1}, {"a": 1, "b": 2}, {"a": 1, "b": 2, "c": 3}, {"b": 2}, {"a": "x"})
    whole = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}
    of_numbers = {"type": "object", "additionalProperties": {"type": "integer"}}
    return (
        ("maxProperties", {**of_numbers, "maxProperties": n}, objects),
        ("minProperties", {**of_numbers, "minProperties": n}, objects),
        ("required", {**whole, "required": ["b"]}, objects),
        ("dependentRequired", {**whole, "dependentRequired": {"a": ["b"]}}, objects),
        ("dependentSchemas", {**whole, "dependentSchemas": {"a": {"required": ["b"]}}}, objects),
        ("dependencies", {"$schema": _DRAFT_7, **whole, "dependencies": {"a": ["b"]}}, objects),
        ("additionalProperties", {**whole, "additionalProperties": False}, objects),
        ("additionalProperties of a kind", {**whole, "additionalProperties": {"type": "string"}}, objects),
        ("patternProperties", {"type": "object", "patternProperties": {"^[ab]$": {"type": "integer"}}}, objects),
        ("propertyNames", {**of_numbers, "propertyNames": {"enum": ["a", "b"]}}, objects),
        ("unevaluatedProperties", {**whole, "unevaluatedProperties": False}, objects),
        ("no such property", {"type": "object", "properties": {"a": False}}, ({}, {"a": 1}, {"b": 1})),
    )


def _of_any(chance: random.Random) -> tuple[_Row, ...]:
    n = chance.randint(2, 9)
    some = (n, n + 1, -n, "a", "b", True, None, [n], {"a": n}, n + 0.5)
    number, word = {"type": "integer"}, {"type": "string"}
    return (
        ("type", {"type": "integer"}, some),
        ("types", {"type": ["integer", "null"]}, some),
        ("const", {"const": n}, some),
        ("enum", {"enum": [n, "a"]}, some),
        ("not", {"not": {"type": "integer"}}, some),
        ("not beside a type", {**number, "not": {"const": n}}, some),
        ("if", {"if": number, "then": {"minimum": n}, "else": {"const": "a"}}, some),
        ("allOf", {"allOf": [{**number, "minimum": n}, {"maximum": n}]}, some),
        ("anyOf beside others", {**number, "anyOf": [{"maximum": -1}, {"minimum": n + 1}]}, some),
        ("oneOf", {"oneOf": [number, word]}, some),
        ("oneOf that overlap", {"oneOf": [number, {"const": n}, word]}, some),
        ("$ref beside others", {"$ref": "#/$defs/i", "maximum": n, "$defs": {"i": number}}, some),
        ("$ref to a name", {"$ref": "#i", "$defs": {"i": {"$anchor": "i", **number}}}, some),
        ("$dynamicRef", {"$dynamicRef": "#i", "$defs": {"i": {"$dynamicAnchor": "i", **number}}, "$ref": "#/$defs/i"}, some),
        ("nothing", {"description": "anything"}, some),
    )
