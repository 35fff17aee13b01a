"""What the users of an engine have of it: each choice of each request they asked for, from its submission to its end.

Owns this gathering, and what a text goes on with that begins as one of those known (for whoever proposes drafts). Never steps
an engine, and never judges what it says.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from engine_under_test.engine import Engine
from engine_under_test.sampling.proposers import Truth
from engine_under_test.types import FinishReason, Request


@dataclass(frozen=True, slots=True)
class Said:
    """What came of one choice. ``was_given_up``: its user aborts it in time."""

    request: Request
    choice: int
    tokens: tuple[int, ...] = ()
    end: FinishReason | None = None
    message: str = ""
    was_given_up: bool = False


class Users:
    """They ask ``engine`` and hear what it says. ``choices``: by request and number, in the order in which they were asked."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.choices: dict[tuple[str, int], Said] = {}

    def ask(self, request: Request, *, gives_up: bool = False) -> None:
        """The engine may refuse: the first choice has the reason."""
        for choice in range(request.sampling.n):
            self.choices[request.request_id, choice] = Said(request, choice, was_given_up=gives_up)
        answer = self._engine.submit(request)
        if not answer.is_accepted:
            first = request.request_id, 0
            self.choices[first] = replace(self.choices[first], message=f"refused: {answer.message}")

    def hear(self) -> None:
        """What was said since the last time."""
        for output in self._engine.take_outputs():
            key = output.request_id, output.choice
            before = self.choices[key]
            self.choices[key] = replace(
                before, tokens=before.tokens + output.token_ids, end=output.finish_reason, message=output.message
            )


def continuing(texts: Iterable[tuple[int, ...]]) -> Truth:
    """What a text goes on with that is the beginning of one of ``texts``; of the first, if of several."""
    known = tuple(texts)

    def truth(tokens: Sequence[int], width: int) -> Sequence[int]:
        text = tuple(tokens)
        return next((whole[len(text) :][:width] for whole in known if whole[: len(text)] == text), ())

    return truth
