"""A model whose next token is a draw from one law, moved on by what the last two cells say: every token of it is a sample.

Behind cells of layer one `a` and `b` (the last one) the law of token w is LAW[(w - shift) mod 20], with the shift
mix(b + mix(a)) mod 20; what remains of a token when its shift is taken off, its *step*, follows LAW whatever stood before it,
independently. A shift is as good as a random number, so the difference of two tokens is uniform unless they stand behind the
same two tokens.
Owns: this law, through the cells that the engine's fingerprint runner really reads; and the steps of finished texts, from
tokens alone. Never: a verdict.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from differential.error_budget import Probabilities
from engine_under_test.execution import cells
from engine_under_test.execution.fingerprint import FingerprintRunner
from engine_under_test.execution.verifying import Places
from models.words import mix

VOCABULARY = 20
NEVER = (18, 19)  # steps without probability
RARE = (16, 17)
_RARE_SHARE = 0.003
_COMMON = np.array([3.2, 6, 7.5, 4, 24, 5, 6.5, 3.5, 4.5, 7, 5, 5.5, 3.3, 7.2, 4.1, 3.7])
LAW: Probabilities = np.concatenate([_COMMON / _COMMON.sum() * (1 - len(RARE) * _RARE_SHARE), [_RARE_SHARE] * 2, [0.0] * 2])
MODE = int(LAW.argmax())

Tokens = npt.NDArray[np.int64]
_SIZE = np.uint64(VOCABULARY)
_32 = np.uint64(32)
_MASK = 2**64 - 1


class MarkovRunner(FingerprintRunner):
    """The engine's runner with logits of this law. Prompts have two tokens or more."""

    def __init__(self, num_blocks: int, block_size: int, **options: Any) -> None:
        super().__init__(num_blocks, block_size, VOCABULARY, **options)
        places = (np.arange(VOCABULARY) - np.arange(VOCABULARY)[:, None]) % VOCABULARY
        with np.errstate(divide="ignore"):
            self._logits_by_shift = np.log(LAW)[places]

    def _digests(self, read: Sequence[cells.Words], places: Places) -> cells.Words:
        """The last two cells in front of each place, less its position, which is added to what weighs cells."""
        columns = zip(places.rows, places.positions, strict=True)
        last = np.array([(read[row][2 * end - 4], read[row][2 * end - 2]) for row, end in columns])
        return cells.mix(last[:, 1] + cells.mix(last[:, 0])) - np.array(places.positions, np.uint64)

    def _logits(self, digests: cells.Words) -> npt.NDArray[np.float64]:
        found: npt.NDArray[np.float64] = self._logits_by_shift[(digests % _SIZE).astype(np.int64)]
        return found


def shifts(texts: Tokens, begin: int) -> Tokens:
    """[..., length - begin]: the shift in front of each token of `texts` [..., length] from `begin` >= 2 on."""
    positions = np.arange(texts.shape[-1], dtype=np.uint64)
    words = mix(mix((positions << _32) + texts.astype(np.uint64)))
    before, last = words[..., begin - 2 : -2], words[..., begin - 1 : -1]
    found: Tokens = (mix(last + mix(before)) % _SIZE).astype(np.int64)
    return found


def steps(texts: Tokens, begin: int) -> Tokens:
    """What each token from `begin` on is a draw of."""
    found: Tokens = (texts[..., begin:] - shifts(texts, begin)) % VOCABULARY
    return found


def shift_behind(last: Sequence[int], position: int) -> int:
    """The shift of the token at `position` behind these two."""
    one, other = (_mix(_mix((at << 32) + token)) for at, token in zip((position - 2, position - 1), last, strict=True))
    return _mix((other + _mix(one)) & _MASK) % VOCABULARY


def likeliest(tokens: Sequence[int], width: int) -> list[int]:
    """The most probable next token, and so on."""
    found = [*tokens[-2:]]
    for position in range(len(tokens), len(tokens) + width):
        found.append((shift_behind(found[-2:], position) + MODE) % VOCABULARY)
    return found[2:]


def _mix(word: int) -> int:
    """`mix` of one word."""
    z = (word + 0x9E3779B97F4A7C15) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)
