"""Masks by themselves: of grammars made at random and their relatives, of characters beyond a few letters, and of every keyword
that a schema can have; and what is refused at the door.

Owns what of these is asked and judged (RS-2). The masks behind outputs are those of languages put together by hand
(`made_grammars.py`, `wide_grammars.py`); of whole texts `jsonschema` is asked (`schema_keywords.py`). A grammar means what it
says whatever was compiled before it, and one that can not be used is refused before anything is asked of it. Never: a draw.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from differential.made_grammars import made, misfit, related
from differential.schema_keywords import KeywordCase, keyword_cases
from differential.wide_grammars import WIDE_STOPS, WIDE_TEXTS, WideCase, wide_cases
from engine_under_test.errors import RunnerError
from engine_under_test.sampling.grammar import CompiledGrammars
from engine_under_test.sampling.grammar_trial import Budget
from engine_under_test.types import GrammarKind, GrammarSpec
from properties.grammar_cases import STOPS, TEXTS, GrammarCase
from properties.languages import Language, allowed
from properties.verdict import Violation

_OUTPUTS, _TOKENS = 3, 12  # of each grammar, so many outputs of at most so many tokens
_WIDE_OUTPUTS, _WIDE_TOKENS = 3, 4
MOST_CHARACTERS = 2_000  # of the sources of one grammar of the wide vocabulary: few, so that the limit is met


@dataclass(frozen=True, slots=True)
class _Bounds:
    """A grammar, the texts that it allows at the least and at the most, over a vocabulary."""

    spec: GrammarSpec
    least: Language
    most: Language
    texts: Sequence[bytes]
    ends: Collection[int]


class Masks:
    """Asks for masks and judges each. ``reached``, ``asked``: counts of whoever owns them."""

    def __init__(self, grammars: CompiledGrammars, reached: Counter[str], asked: Counter[str]) -> None:
        self._grammars = grammars
        self._wide = CompiledGrammars(WIDE_TEXTS, Budget(source_characters=MOST_CHARACTERS))
        self._reached = reached
        self._asked = asked

    def close(self) -> None:
        """Ends the process in which grammars are tried."""
        self._wide.close()

    # Grammars at random, by themselves and with relatives

    def made(self, chance: random.Random) -> Violation | None:
        """One grammar, or two that have much in common, asked by turns; beside them one that must be refused."""
        if chance.random() < 0.5:
            case = made(chance)
            return self._unusable(case.spec) or self._outputs(chance, [case] * _OUTPUTS)
        cases, refused = related(chance)
        self._reached["grammars with relatives"] += 1
        questions = [(case.spec, False) for case in cases] + [(refused, True)]
        for spec, is_refused in chance.sample(questions, len(questions)):
            if (found := self._accepted(spec) if is_refused else self._unusable(spec)) is not None:
                return found
        return self._outputs(chance, [*cases, cases[0], cases[1]])

    def _outputs(self, chance: random.Random, cases: Sequence[GrammarCase]) -> Violation | None:
        for case in cases:
            told = _Bounds(case.spec, case.language, case.language, TEXTS, STOPS)
            found, output = self._walk(chance, self._grammars, told, _TOKENS)
            if found is not None:
                return found
            if set(output) & set(STOPS):
                wrong = misfit(case.spec, b"".join([TEXTS[token] for token in output[:-1]]))
                if wrong is not None:
                    return _violation(case.spec, wrong, "a text that fits")
                self._reached["texts of made grammars"] += 1
        return None

    def _walk(
        self, chance: random.Random, grammars: CompiledGrammars, told: _Bounds, most: int
    ) -> tuple[Violation | None, tuple[int, ...]]:
        """An output of at most so many tokens, each one of those allowed; the mask behind each of its beginnings."""
        output: tuple[int, ...] = ()
        while len(output) < most and not set(output) & set(told.ends):
            found, due = self._mask(grammars, told, output)
            if found is not None:
                return found, output
            if not due:
                break  # the vocabulary can not spell what must follow
            strange = [token for token in due if told.texts[token][:1] >= b"\x80"]
            output += (chance.choice(strange if strange and chance.random() < 0.4 else sorted(due)),)
        return None, output

    def _mask(
        self, grammars: CompiledGrammars, told: _Bounds, output: tuple[int, ...]
    ) -> tuple[Violation | None, frozenset[int]]:
        """The mask behind one output, and what it must allow."""
        least = allowed(told.least, told.texts, output, told.ends)
        most = least if told.most is told.least else allowed(told.most, told.texts, output, told.ends)
        self._asked["RS-2"] += 1
        try:
            found = set(np.flatnonzero(grammars.allowed(told.spec, output, told.ends)).tolist())
        except RunnerError as error:
            facts = (f"{'output':<13} {list(output)}",)
            return _violation(told.spec, f"no mask: {error}", f"one of {len(least)} tokens", facts), least
        if least <= found <= most:
            self._count(told, least, most)
            return None, least
        texts, spoken = told.texts, b"".join([told.texts[token] for token in output])
        missing, extra = ([texts[token] for token in sorted(some)] for some in (least - found, found - most))
        facts = (f"{'output':<13} {list(output)}, {spoken!r}",)
        said = f"{len(extra)} tokens too many: {_shown(extra)}, {len(missing)} too few: {_shown(missing)}"
        return _violation(told.spec, said, f"{len(least)} tokens", facts), least

    def _count(self, told: _Bounds, least: frozenset[int], most: frozenset[int]) -> None:
        """What a mask of the wide vocabulary decides about."""
        if told.texts is not WIDE_TEXTS:
            return
        words = {told.texts[token] for token in least}
        others = {text for token, text in enumerate(told.texts) if token not in most}
        self._reached["masks that tell cases apart"] += bool({word.swapcase() for word in words} & others)
        beyond = [word for word in words if word[:1] >= b"\xc2"]
        self._reached["masks that allow other scripts"] += bool(beyond)
        self._reached["masks that forbid other scripts"] += any(text[:1] >= b"\xc2" for text in others)

    # Characters, keywords, sizes

    def wide(self, chance: random.Random) -> Violation | None:
        """One grammar of every kind about characters, one schema of every keyword, and sizes about the limit."""
        for case in wide_cases(chance):
            if (found := self._unusable(case.spec, self._wide) or self._wide_outputs(chance, case)) is not None:
                return found
        for keyword in keyword_cases(chance):
            if (found := self._keyword(keyword)) is not None:
                return found
        return self._sizes(chance)

    def _wide_outputs(self, chance: random.Random, case: WideCase) -> Violation | None:
        told = _Bounds(case.spec, case.least, case.most, WIDE_TEXTS, WIDE_STOPS)
        for _ in range(_WIDE_OUTPUTS):
            found, _output = self._walk(chance, self._wide, told, _WIDE_TOKENS)
            if found is not None:
                return found
        return None

    def _keyword(self, case: KeywordCase) -> Violation | None:
        """A schema is refused, or each of the values is a complete text if it fits, and only then."""
        if self._wide.why_not(case.spec) is not None:
            self._reached["keywords refused"] += 1
            return None
        for written, misfits in case.values:
            tokens = (*written.encode(), *WIDE_STOPS)  # the first tokens are single bytes
            may_be_said = self._wide.num_allowed(case.spec, (), tokens, WIDE_STOPS) == len(tokens)
            self._asked["RS-2"] += 1
            if may_be_said == (misfits is None):
                self._reached["near misses held back" if misfits else "values let through"] += 1
                continue
            fact = (f"{'keyword':<13} {case.keyword}", *((f"{'jsonschema':<13} {misfits}",) if misfits else ()))
            said = f"{written} is {'a complete text' if may_be_said else 'no complete text'}"
            due = f"held back by {case.keyword!r}, or a schema that is refused" if misfits else "it fits, so it may be said"
            return _violation(case.spec, said, due, fact)
        return None

    def _sizes(self, chance: random.Random) -> Violation | None:
        """Sources that are together as large as allowed, and by one character larger, in one text and in many."""
        for num in (1, 2, chance.randint(3, 40)):
            sizes = [MOST_CHARACTERS // num] * num
            sizes[0] += MOST_CHARACTERS - sum(sizes)
            words = tuple(chr(ord("a") + place % 26) * size for place, size in enumerate(sizes))
            fits, exceeds = (GrammarSpec(GrammarKind.CHOICE, found) for found in (words, (*words[:-1], words[-1] + "é")))
            found = self._unusable(fits, self._wide) or self._accepted(exceeds, self._wide)
            if found is not None:
                return found
            self._reached["sizes about the limit"] += 1
        return None

    # At the door

    def _unusable(self, spec: GrammarSpec, grammars: CompiledGrammars | None = None) -> Violation | None:
        why_not = (grammars or self._grammars).why_not(spec)
        return None if why_not is None else _violation(spec, f"refused: {why_not}", "a grammar that can be used")

    def _accepted(self, spec: GrammarSpec, grammars: CompiledGrammars | None = None) -> Violation | None:
        self._reached["refused at the door"] += 1
        if (grammars or self._grammars).why_not(spec) is not None:
            return None
        return _violation(spec, "accepted", "refused at the door, with a reason")


def _violation(spec: GrammarSpec, found: str, expected: str, facts: tuple[str, ...] = ()) -> Violation:
    written = f"{spec.kind.value} {_shown([*spec.sources])}"
    return Violation("RS-2", "grammar", f"a {spec.kind.value}", found, expected, (f"{'grammar':<13} {written}", *facts))


def _shown(some: Sequence[str | bytes]) -> str:
    told = [repr(each if len(each) <= 200 else each[:200]) for each in some[:12]]
    return f"[{', '.join(told)}{', …' if len(some) > 12 else ''}]"
