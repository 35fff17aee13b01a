"""Grammars by themselves: exactly the right tokens behind every output, whatever was asked before, and nothing that hangs."""

from __future__ import annotations

import json
import random
import resource
import sys

import numpy as np
import pytest

from engine_under_test import sampling
from engine_under_test.errors import ConfigError, RunnerError
from engine_under_test.sampling.grammar import CompiledGrammars
from engine_under_test.sampling.grammar_trial import Budget
from engine_under_test.types import GrammarKind, GrammarSpec
from properties.grammar_cases import CASES, STOPS, TEXTS, VOCAB_SIZE
from properties.languages import allowed


@pytest.fixture(scope="module")
def grammars() -> CompiledGrammars:
    return CompiledGrammars(TEXTS, Budget(cpu_s=0.3))


def found(grammars: CompiledGrammars, spec: GrammarSpec, output: tuple[int, ...]) -> frozenset[int]:
    return frozenset(np.flatnonzero(grammars.allowed(spec, output, STOPS)).tolist())


def said(tokens: frozenset[int]) -> list[bytes]:
    return sorted(TEXTS[token] for token in tokens)


@pytest.mark.parametrize("name", CASES)
def test_behind_every_output_exactly_the_tokens_are_allowed_with_which_it_can_still_be_completed(
    grammars: CompiledGrammars, name: str
) -> None:
    spec, language = CASES[name].spec, CASES[name].language
    assert grammars.why_not(spec) is None
    chance = random.Random(name)
    for _ in range(40):
        output: tuple[int, ...] = ()
        while not set(output) & set(STOPS) and len(output) < 30:
            expected = allowed(language, TEXTS, output, STOPS)
            tokens = found(grammars, spec, output)
            assert tokens == expected, (output, said(tokens - expected), said(expected - tokens))
            output += (chance.choice(sorted(tokens)),)
        assert found(grammars, spec, output) == (
            frozenset(STOPS) if set(output) & set(STOPS) else found(grammars, spec, output)
        )


def test_what_is_allowed_depends_on_grammar_and_output_alone_whatever_was_asked_before(grammars: CompiledGrammars) -> None:
    chance = random.Random("in any order")
    asked: list[tuple[GrammarSpec, tuple[int, ...]]] = []
    for case in CASES.values():
        output: tuple[int, ...] = ()
        while not set(output) & set(STOPS) and len(output) < 20:
            asked.append((case.spec, output))
            output += (chance.choice(sorted(found(grammars, case.spec, output))),)
    expected = {each: found(grammars, *each) for each in asked}
    fresh = CompiledGrammars(TEXTS)
    chance.shuffle(asked)  # forks, rows that begin again, tokens that are taken back
    assert {each: found(fresh, *each) for each in asked} == expected
    fresh.close()


def test_masks_of_drafts_are_those_behind_each_of_them_and_nothing_follows_one_that_is_forbidden(
    grammars: CompiledGrammars,
) -> None:
    spec, language = CASES["flat object"].spec, CASES["flat object"].language
    output, drafts = (token(b'{"a": '),), (token(b"t"), token(b"r"), token(b"a"), token(b"u"))
    masks = grammars.masks(spec, output, drafts, STOPS)
    assert masks.dtype == np.uint32
    assert masks.shape == (5, -(-VOCAB_SIZE // 32))
    for count, mask in enumerate(masks):
        bits = {each for each in range(32 * len(mask)) if mask[each // 32] >> (each % 32) & 1}
        assert bits == (allowed(language, TEXTS, output + drafts[:count], STOPS) if count < 3 else set(STOPS))
    assert grammars.num_allowed(spec, output, drafts, STOPS) == 2
    assert grammars.num_allowed(spec, output, drafts[:2], STOPS) == 2
    assert grammars.num_allowed(spec, (), (token(b"{"), STOPS[0]), STOPS) == 1


def token(text: bytes) -> int:
    return TEXTS.index(text)


def schema(**written: object) -> GrammarSpec:
    return GrammarSpec(GrammarKind.JSON_SCHEMA, (json.dumps(written),))


def regex(source: str) -> GrammarSpec:
    return GrammarSpec(GrammarKind.REGEX, (source,))


REFUSED = {
    "a schema that takes long": (schema(type="integer", multipleOf=1000003), "takes more than 0.3 s"),
    "a schema that explodes": (
        schema(allOf=[{"anyOf": [{"properties": {f"p{i}{j}": {}}} for j in "ab"]} for i in range(14)]),
        "schema too large",
    ),
    "a schema with thousands of optional members": (
        schema(type="object", properties={f"p{i}": {"type": "integer"} for i in range(2200)}),
        "takes more than 0.3 s",
    ),
    "a schema that is its own reference": (schema(**{"$ref": "#"}), "no text fits it"),
    "a schema that is nested deeply": (
        GrammarSpec(GrammarKind.JSON_SCHEMA, ('{"items":' * 5000 + "{}" + "}" * 5000,)),
        "must not be nested so deeply",
    ),
    "a schema that is large": (schema(enum=["x" * 70_000]), "at most 65536 characters, found 700"),
    "a schema with an unknown keyword": (schema(**{"not": {"type": "string"}}), 'Unimplemented keys: ["not"]'),
    "a schema of an unknown type": (schema(type="strng"), "Invalid type: strng"),
    "a schema that nothing fits": (schema(type="integer", minimum=5, maximum=3), "Unsatisfiable schema"),
    "a schema that is no JSON": (GrammarSpec(GrammarKind.JSON_SCHEMA, ("{",)), "must be JSON, but it is not"),
    "a schema with a number that is none": (GrammarSpec(GrammarKind.JSON_SCHEMA, ('{"minimum": NaN}',)), "NaN is no JSON"),
    "a schema that is false": (GrammarSpec(GrammarKind.JSON_SCHEMA, ("false",)), "must be an object"),
    "an expression that is none": (regex("(a"), "unclosed group"),
    "an expression with a look-around": (regex("(?=a)b"), "look-around"),
    "an expression that nothing fits": (regex("[^\\s\\S]"), "no text fits it"),
    "an expression of many groups": (regex("(" * 30_000 + "a" + ")" * 30_000), "but"),
    "half a surrogate pair": (regex("\ud800"), "must be Unicode"),
    "no choices": (GrammarSpec(GrammarKind.CHOICE, ()), "must have sources"),
    "an empty choice": (GrammarSpec(GrammarKind.CHOICE, ("a", "")), "at least one character"),
    "two schemas": (GrammarSpec(GrammarKind.JSON_SCHEMA, ("{}", "{}")), "must be one text, found 2"),
    "a kind that is none": (GrammarSpec("regex", ("a",)), "must be a `GrammarSpec`"),  # type: ignore[arg-type]  # wrong types are the point
    "a list": (GrammarSpec(GrammarKind.REGEX, ["a"]), "must be a `GrammarSpec`"),  # type: ignore[arg-type]  # wrong types are the point
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_can_not_be_compiled_is_refused_in_one_sentence_within_its_time(grammars: CompiledGrammars, name: str) -> None:
    spec, expected = REFUSED[name]
    message = grammars.why_not(spec)
    assert message is not None
    assert expected in message
    assert "\n" not in message
    assert len(message) < 400
    assert grammars.why_not(spec) == message
    assert grammars.why_not(CASES["choices"].spec) is None  # the next one is judged


def test_a_grammar_that_was_ended_for_its_time_took_hardly_more_of_it(grammars: CompiledGrammars) -> None:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert grammars.why_not(schema(type="integer", multipleOf=1000033)) is not None
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 1.5  # that of the process before it too


def test_a_step_that_takes_more_work_than_it_may_is_an_error_of_its_row() -> None:
    grammars = CompiledGrammars([*TEXTS[:10]])
    spec = regex("(((((a|ab)*b){1,90}){1,90}){1,90}){1,90}x")
    assert grammars.why_not(spec) is None

    def goes_on() -> None:
        for length in range(200):
            grammars.allowed(spec, (token(b"a"), token(b"b")) * length, ())

    with pytest.raises(RunnerError, match="more work than a step may"):
        goes_on()
    grammars.close()


def test_without_the_library_one_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    monkeypatch.delitem(sys.modules, "engine_under_test.sampling.grammar_trial", raising=False)
    monkeypatch.delattr(sampling, "grammar_trial", raising=False)
    with pytest.raises(ConfigError, match=r"assay\[grammar\]"):
        CompiledGrammars(TEXTS)
