"""A scheduler that preempts on demand. Never: torch, or a judgement."""

from __future__ import annotations

from collections.abc import Sequence

from engine_under_test.scheduling.scheduler import Scheduler, View
from engine_under_test.sequence import Sequence as Choice
from engine_under_test.types import Request


class PreemptingScheduler(Scheduler):
    """Preempts each choice of the named requests, once each, when it has emitted these numbers of tokens."""

    __slots__ = ("_due",)

    def __init__(self, requests: Sequence[Request], counts: Sequence[int]) -> None:
        self._due = {
            (request.request_id, choice): sorted(counts) for request in requests for choice in range(request.sampling.n)
        }

    def choose_victims(self, view: View) -> tuple[Choice, ...]:
        """See `Scheduler.choose_victims`."""
        chosen = list(super().choose_victims(view))
        for seq in view.running:
            due = self._due.get((seq.request.request_id, seq.choice), [])
            if due and len(seq.tokens) - seq.prompt_len >= due[0] and not seq.pending_forks:
                due.pop(0)
                if seq not in chosen:
                    chosen.append(seq)
        return tuple(chosen)
