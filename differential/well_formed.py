"""What an engine hands back, before anybody reads it as a place in a table: as many whole numbers as rows, each in its range.

Owns: whether an answer can be read at all. A token outside the vocabulary, a count of drafts that nobody proposed, a number
that is none, too few of them, or an exception, is wrong by itself: a verdict, and no accident of the harness. Never: whether
an answer that can be read is right.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from engine_under_test.sampling.speculation import Proposal

Numbers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
_OF_SUMS = 1e-6  # by which the numbers of a law may not sum to 1
_Answer = TypeVar("_Answer")


class Malformed(Exception):
    """What came back can not be read; said as "token 7 of row 3, out of 0 to 4"."""


def answered(what: str, ask: Callable[[], _Answer], *, but: tuple[type[Exception], ...] = ()) -> _Answer:
    """What is answered to something lawful. Malformed if it raises, unless that is one of `but`."""
    passed: tuple[type[Exception], ...] = (*but, Malformed)
    try:
        return ask()
    except passed:
        raise
    except Exception as error:  # whatever it is: the question is lawful
        raise Malformed(f"{what} raised {type(error).__name__}: {error}") from error


def whole_numbers(found: Any, what: str, num: int, least: int, most: int | Numbers) -> Numbers:
    """`found` (numbers, an array or a tensor) as [num], each of `least` to `most`, which may be one for each. Malformed if
    it is anything else."""
    values = _as_array(found, what)
    if values.shape != (num,):
        raise Malformed(f"{what} for {num} rows, in the shape {list(values.shape)}")
    if values.dtype.kind not in "iu" and num:
        odd = next((place for place, each in enumerate(values.tolist()) if not _is_whole(each)), 0)
        raise Malformed(f"{what} of row {odd}: {values.tolist()[odd]!r} in numbers of type {values.dtype}")
    outside = np.flatnonzero((values < least) | (values > most))
    if len(outside):
        row = int(outside[0])
        end = int(np.broadcast_to(most, num)[row])
        raise Malformed(f"{what} of row {row}: {int(values[row])}, out of {least} to {end}; {len(outside)} of {num} rows so")
    return values.astype(np.int64)


def drafts_with_laws(num_asks: int, proposal: Proposal, vocab_size: int) -> list[tuple[tuple[int, ...], list[Floats]]]:
    """For each ask: the drafts proposed for it, and the law of each. Malformed if one is no token, or no law."""
    drafts, known = proposal.drafts, proposal.probabilities
    if len(drafts) != num_asks:
        raise Malformed(f"drafts of {len(drafts)} rows, {num_asks} of which were asked for")
    num = sum(map(len, drafts))
    whole_numbers([token for of_row in drafts for token in of_row], "draft", num, 0, vocab_size - 1)
    laws = np.zeros((0, vocab_size)) if known is None else np.array(known.tolist(), np.float64).reshape(len(known), -1)
    if laws.shape != (num, vocab_size):
        raise Malformed(f"laws in the shape {list(laws.shape)} for {num} drafts of a vocabulary of {vocab_size}")
    odd = np.flatnonzero(~((laws >= 0).all(axis=1) & (np.abs(laws.sum(axis=1) - 1) <= _OF_SUMS)))
    if len(odd):
        raise Malformed(
            f"the law of draft {odd[0]}: numbers of {laws[odd[0]].min():.3g} on, which sum to {laws[odd[0]].sum():.6g}"
        )
    ends = np.cumsum([0, *map(len, drafts)]).tolist()
    return [(tuple(each), list(laws[begin:end])) for each, begin, end in zip(drafts, ends[:-1], ends[1:], strict=True)]


def _is_whole(value: object) -> bool:
    return isinstance(value, int) or (isinstance(value, float) and value.is_integer())


def _as_array(found: Any, what: str) -> npt.NDArray[Any]:
    numpy_of = getattr(found, "numpy", None)
    try:
        values = np.asarray(found if numpy_of is None else numpy_of())
    except (TypeError, ValueError, RuntimeError) as error:
        raise Malformed(f"{what}: {found!r}") from error
    return values
