"""Log-probabilities of one row, and the few of them that are told.

Owns the log-softmax, in float64, and the order of the most probable tokens. Never: which rows ask, or of which distribution.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from engine_under_test.types import Logprobs

Row = npt.NDArray[np.float64]  # [vocabulary]


def log_softmax(row: Row) -> Row:
    """The logarithms of the probabilities. A row of -inf stays one: nothing has a chance."""
    top = row.max()
    if top == -np.inf:
        return row.copy()
    shifted: Row = row - top
    shifted -= np.log(np.exp(shifted).sum())
    return shifted


def first_tokens(row: Row, count: int) -> npt.NDArray[np.int64]:
    """The `count` highest, by falling value, among equals by rising number; all, if there are no more."""
    if count >= len(row):
        return np.argsort(-row, kind="stable")
    if count == 0:
        return np.empty(0, dtype=np.int64)
    places = np.flatnonzero(row >= np.partition(row, -count)[-count])
    return places[np.argsort(-row[places], kind="stable")[:count]]


def told(row: Row, token: int, count: int) -> Logprobs:
    """What is told of a row of logits from which `token` came: it, and the `count` most probable ones."""
    tokens = [token, *first_tokens(row, count).tolist()]
    return Logprobs(tuple(tokens), tuple(log_softmax(row)[tokens].tolist()))
