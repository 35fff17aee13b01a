"""The fingerprint model with rows that are kept from step to step, as the runner of a language model keeps them (`rows.py`).

Owns: that what a step reads of a row (blocks, prompt, sampling, choice, adapter, media, output) is what is kept of it, not what
the plan repeats. Never: how rows are kept. Slower than the runner that reads plans.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import chain
from typing import Any

from engine_under_test.execution.fingerprint import FingerprintRunner, Rows
from engine_under_test.execution.landing import Outcome
from engine_under_test.execution.rows import KeptRows
from engine_under_test.types import Plan, Request, Reservation


class KeptFingerprints(FingerprintRunner):
    """See `FingerprintRunner`. ``rows``: as the device has them, those of the plan that it ran last."""

    def __init__(self, num_blocks: int, block_size: int, vocab_size: int, **more: Any) -> None:
        super().__init__(num_blocks, block_size, vocab_size, **more)
        self.rows = KeptRows(block_size)

    def _run(self, inputs: tuple[Plan, Reservation, Rows]) -> Outcome:
        plan, reservation, rows = inputs
        try:
            self._begin(plan.generation)
            self.rows.follow(plan, reservation, self._token_in_flight)
            blocks = list(chain.from_iterable(map(self.rows.table, range(plan.num_rows))))
            inputs = self._as_kept(plan), reservation, rows._replace(blocks=blocks)
        except Exception as error:
            return Outcome(None, error)
        outcome = super()._run(inputs)
        if outcome.tokens is not None:
            for row, samples in enumerate(plan.samples):
                if samples:
                    self.rows.sampled(row, outcome.tokens[row], plan.num_drafts[row] if plan.num_drafts else 0)
        return outcome

    def _as_kept(self, plan: Plan) -> Plan:
        """The plan with what is kept of its rows in place of what it says of them."""
        rows = range(plan.num_rows)
        outputs = plan.outputs and tuple(map(self._output, rows))
        requests = tuple(map(self._request, rows, plan.requests))
        return replace(
            plan, requests=requests, choices=tuple([self.rows.value("choice", row) for row in rows]), outputs=outputs
        )

    def _request(self, row: int, planned: Request) -> Request:
        kept = self.rows
        return Request(
            planned.request_id,
            kept.value("prompt", row),
            kept.sampling(row),
            adapter=kept.value("adapter", row),
            media=kept.value("media", row),
        )

    def _output(self, row: int) -> tuple[int, ...] | None:
        output = self.rows.value("output", row)
        return None if output is None else tuple(output)
