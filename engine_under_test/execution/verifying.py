"""Where the rows of a plan want a token, drafts included, and which of the tokens drawn there stand.

A row with drafts has a token drawn behind its last known token and behind each draft: each at the noise address that it would
have without speculation. A draft stands if it is the very token that was drawn in its place, and all before it stand; the token
behind the last one that stands is the row's last. For drafts that were named with certainty (a function of what stands before
them) this is rejection sampling, with one draw for both of its steps: a draft d is kept with probability p(d), and where it
falls, the token is distributed as p without d, normalised (see `sampling/verification.py`). And beyond its law, each token is
the one that this request would have got without speculation, whoever proposes whatever. Drafts that were drawn from a law of
their own (`Plan.draft_laws`) are judged by rejection sampling as it stands, at its own noise addresses.

Owns both. Never: a logit or a draw. Both runners use it.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress
from typing import Any, NamedTuple

from engine_under_test.types import Plan


class Places(NamedTuple):
    """In columns, row after row: the row, and the index in prompt + output of a token that is drawn for it."""

    rows: Sequence[int]
    positions: Sequence[int]


class Stands(NamedTuple):
    """``tokens`` of each row of the plan; ``kept``: which of the draws they are."""

    tokens: tuple[tuple[int, ...], ...]
    kept: Sequence[int]


def places_of(plan: Plan) -> Places:
    """Of the rows that sample."""
    rows = list(compress(range(plan.num_rows), plan.samples))
    ends = [plan.starts[row] + plan.num_tokens[row] for row in rows]
    if not plan.num_drafts:
        return Places(rows, ends)
    places = [
        (row, position) for row, end in zip(rows, ends, strict=True) for position in range(end - plan.num_drafts[row], end + 1)
    ]
    return Places([row for row, _ in places], [position for _, position in places])


class Judged(NamedTuple):
    """A row whose drafts were drawn from a law: the first of its draws, its drafts and their law."""

    row: int
    first: int
    drafts: tuple[int, ...]
    law: Any


def to_judge(plan: Plan, places: Places) -> list[Judged]:
    """The rows whose drafts are kept or not by rejection sampling. A greedy row keeps those that it would take itself, whatever
    they were drawn from."""
    if not plan.draft_laws:
        return []
    found = []
    drafts = plan.drafts()
    for number, row in enumerate(places.rows):
        law = plan.draft_laws[row]
        is_first = number == 0 or places.rows[number - 1] != row
        if is_first and law is not None and plan.requests[row].sampling.temperature > 0:
            found.append(Judged(row, number, drafts[row], law))
    return found


def settled(judged: Judged, num_accepted: int, token: int) -> dict[int, int]:
    """The tokens of a row's draws, by a verdict on its drafts. What stands behind them counts for nothing."""
    first, drafts = judged.first, judged.drafts
    tokens = [*drafts[:num_accepted], token, *(0,) * (len(drafts) - num_accepted)]
    return dict(enumerate(tokens, start=first))


def stand(plan: Plan, places: Places, drawn: Sequence[int]) -> Stands:
    """What of the tokens drawn at `places` becomes the rows' output."""
    found: list[tuple[int, ...]] = [()] * plan.num_rows
    if not plan.num_drafts:
        for row, token in zip(places.rows, drawn, strict=True):
            found[row] = (token,)
        return Stands(tuple(found), range(len(drawn)))
    kept: list[int] = []
    drafts = plan.drafts()
    is_open = [True] * plan.num_rows
    for number, (row, token) in enumerate(zip(places.rows, drawn, strict=True)):
        if is_open[row]:
            place = len(found[row])
            found[row] += (token,)
            kept.append(number)
            is_open[row] = place < len(drafts[row]) and drafts[row][place] == token
    return Stands(tuple(found), kept)
