"""Grammars over sixteen tokens, each with what it means: for worlds of the fingerprint model, whose vocabulary is as small.

Owns the texts of these tokens, a few grammars that are short enough to end within some tokens, and for each the language that
was put together by hand beside it (`languages.py`). Never: the library that compiles them. Free of torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Final

from engine_under_test.types import GrammarKind, GrammarSpec
from properties.languages import EMPTY, Language, allowed, either, one_of, star, text, then, times

TEXTS: Final = (
    *(b"a", b"b", b"ab", b"-", b"0", b"1", b"01", b"y", b"e", b"s", b"es", b"yes", b"a"),  # two tokens of one text
    b"",  # no text, and no stop token either
    b"",
    b"b",
)
STOPS: Final = (14, 15)  # one that is no text, and one that would be the text b
VOCAB_SIZE: Final = len(TEXTS)

_A_OR_B = one_of("ab")
LANGUAGES: Final[Mapping[GrammarSpec, Language]] = {
    GrammarSpec(GrammarKind.CHOICE, ("yes", "yesyes", "aba-01", "ba", "se")): either(
        *map(text, ("yes", "yesyes", "aba-01", "ba", "se"))
    ),
    GrammarSpec(GrammarKind.REGEX, ("[ab]{2,7}(-[01]+)?",)): then(
        times(_A_OR_B, 2, 7), either(EMPTY, then(text("-"), one_of("01"), star(one_of("01"))))
    ),
    GrammarSpec(GrammarKind.REGEX, ("(ab|-[01])*yes",)): then(
        star(either(text("ab"), then(text("-"), one_of("01")))), text("yes")
    ),
    GrammarSpec(GrammarKind.REGEX, ("([ab]*-)*",)): star(then(star(_A_OR_B), text("-"))),
}
GRAMMARS: Final = tuple(LANGUAGES)


@lru_cache(maxsize=20_000)
def forbidden(spec: GrammarSpec, output: tuple[int, ...], ends: tuple[int, ...]) -> tuple[int, ...]:
    """The tokens that may not follow an output; ``ends`` are the stop tokens."""
    may_follow = allowed(LANGUAGES[spec], TEXTS, output, ends)
    return tuple(token for token in range(VOCAB_SIZE) if token not in may_follow)
