"""The grammars of small worlds as the engine's library compiles them, for an engine and for the device that the harness plays.

Owns that they are compiled once for all worlds: what the library says of a grammar and an output is a function of these two.
Never: what a grammar means (`properties.small_grammars`).
"""

from __future__ import annotations

import importlib.util
from functools import lru_cache

from engine_under_test.errors import BadInput
from engine_under_test.sampling.grammar import CompiledGrammars
from properties.small_grammars import TEXTS, VOCAB_SIZE

IS_INSTALLED = importlib.util.find_spec("llguidance") is not None  # the extra `grammar`: machines and storms draw some


@lru_cache(maxsize=1)
def _compiled() -> CompiledGrammars:
    return CompiledGrammars(TEXTS, are_tried=True)


def compiled(vocab_size: int) -> CompiledGrammars:
    """For a world of that vocabulary. BadInput if that is not the one that has texts; ConfigError without the library."""
    if vocab_size != VOCAB_SIZE:
        raise BadInput(f"a world with grammars has a vocabulary of {VOCAB_SIZE} tokens, found {vocab_size}; leave one out")
    return _compiled()
