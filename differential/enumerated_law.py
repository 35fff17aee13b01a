"""What speculation must come to, enumerated: the law of one verification, and the law of the text, from p and q alone.

Written from the papers (Leviathan, Kalman, Matias 2023, algorithm 1; Chen et al. 2023, algorithm 2) in exact fractions, one
case at a time. Owns: the right law. Never: a look at the engine.

Laws are Markov: row s of a table is the law of the token behind token s. An outcome is (drafts kept, tokens emitted ...), the
tokens filled up with -1.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction

import numpy as np
import numpy.typing as npt

Table = Sequence[Sequence[float]]
Law = dict[tuple[int, ...], float]


def law_of_step(target: Table, proposed: Table, width: int, state: int) -> Law:
    """Of one verification of `width` drafts behind token `state`."""
    found: dict[tuple[int, ...], Fraction] = {}
    for chance, kept, tokens in _steps(_exact(target), _exact(proposed), width, state):
        outcome = (kept, *tokens, *[-1] * (width + 1 - len(tokens)))
        found[outcome] = found.get(outcome, Fraction(0)) + chance
    return {outcome: float(chance) for outcome, chance in found.items() if chance}


def law_of_text(target: Table, length: int, state: int) -> Law:
    """Of the first `length` tokens behind token `state`, whoever emits them: the target's."""
    found: dict[tuple[int, ...], Fraction] = {(): Fraction(1)}
    exact = _exact(target)
    for _token in range(length):
        found = {
            (*text, token): chance * share
            for text, chance in found.items()
            for token, share in enumerate(exact[text[-1] if text else state])
            if share
        }
    return {text: float(chance) for text, chance in found.items()}


def law_of_end(target: Table, proposed: Table, width: int, state: int) -> npt.NDArray[np.float64]:
    """[width + 1, tokens]: drafts kept, and the token behind them. For vocabularies that are too large for `law_of_step`.

    A draft falls as often as the positive part of p - q has mass (that of q - p is the same), so the token recovered has just
    that part for its law, undivided.
    """
    p, q = np.asarray(target), np.asarray(proposed)
    found = np.zeros((width + 1, p.shape[1]))
    at = np.zeros(len(p))
    at[state] = 1.0
    for place in range(width):
        found[place] = at @ np.clip(p - q, 0, None)
        at = at @ np.minimum(p, q)
    found[width] = at @ p
    return found


def completed(step: Law, target: Table, length: int) -> Law:
    """The law of the first `length` tokens if one verification is followed by draws from the target."""
    found: Law = {}
    for outcome, chance in step.items():
        tokens = tuple(token for token in outcome[1:] if token >= 0)
        rest = length - len(tokens)
        behind = law_of_text(target, rest, tokens[-1]) if rest > 0 else {(): 1.0}
        for more, share in behind.items():
            text = (*tokens, *more)[:length]
            found[text] = found.get(text, 0.0) + chance * share
    return found


Exact = list[list[Fraction]]


def _exact(table: Table) -> Exact:
    """The numbers as they are, each row over its sum: a law of floats does not sum to 1."""
    rows = [[Fraction(share) for share in row] for row in table]
    return [[share / sum(row) for share in row] for row in rows]


def _steps(target: Exact, proposed: Exact, width: int, state: int) -> Iterator[tuple[Fraction, int, tuple[int, ...]]]:
    """Every way that a verification can go: its probability, drafts kept, tokens emitted."""
    if width == 0:
        for token, share in enumerate(target[state]):
            yield share, 0, (token,)
        return
    p, q = target[state], proposed[state]
    left = [max(Fraction(0), mine - its) for mine, its in zip(p, q, strict=True)]
    whole = sum(left)
    for draft, drawn in enumerate(q):
        if not drawn:
            continue
        stays = min(Fraction(1), p[draft] / drawn)
        for chance, kept, tokens in _steps(target, proposed, width - 1, draft):
            yield drawn * stays * chance, kept + 1, (draft, *tokens)
        if stays < 1:
            for token, share in enumerate(left):
                yield drawn * (1 - stays) * share / whole, 0, (token,)
