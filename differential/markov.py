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
from models.law import mix

VOCABULARY = 20
NEVER = (18, 19)  # steps without probability
RARE = (16, 17)
_RARE_SHARE = 0.003
_COMMON = np.array([3, 6, 9, 4, 12, 5, 7, 3.5, 4.5, 8, 5.5, 6.5, 3.2, 10, 4.2, 5.1])
LAW: Probabilities = np.concatenate([_COMMON / _COMMON.sum() * (1 - len(RARE) * _RARE_SHARE), [_RARE_SHARE] * 2, [0.0] * 2])
MODE = int(LAW.argmax())

Tokens = npt.NDArray[np.int64]
_SIZE = np.uint64(VOCABULARY)
_32 = np.uint64(32)


class MarkovRunner(FingerprintRunner):
    """The engine's runner with logits of this law. Prompts have two tokens or more."""

    def __init__(self, num_blocks: int, block_size: int, **options: Any) -> None:
        super().__init__(num_blocks, block_size, VOCABULARY, **options)
        places = (np.arange(VOCABULARY) - np.arange(VOCABULARY)[:, None]) % VOCABULARY
        with np.errstate(divide="ignore"):
            self._logits_by_shift = np.log(LAW)[places]

    def _digests(self, read: Sequence[cells.Words], places: Any) -> cells.Words:
        """The last two cells in front of each place, less its position, which is added to what weighs cells."""
        ends = _ends(places)
        last = np.array([[row[2 * end - 4], row[2 * end - 2]] for row, end in zip(_rows(read, places), ends, strict=True)])
        return cells.mix(last[:, 1] + cells.mix(last[:, 0])) - np.array(ends, np.uint64)

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


def likeliest(text: Sequence[int]) -> int:
    """The most probable next token."""
    return int(shifts(np.array([*text, 0]), len(text))[0] + MODE) % VOCABULARY


def _ends(places: Any) -> list[int]:
    return [places.ends[row] for row in places.sampled]


def _rows(read: Sequence[cells.Words], places: Any) -> list[cells.Words]:
    return [read[row] for row in places.sampled]
