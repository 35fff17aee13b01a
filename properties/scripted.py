"""A runner whose tokens are known beforehand, and the alphabet that byte-level vocabularies spell bytes in: for whoever judges
texts.

Owns: what each choice says. Never: a vocabulary, or a judgement. Free of torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from engine_under_test.errors import RunnerError
from engine_under_test.execution.runner import Launch, Runner
from engine_under_test.types import Plan, Reservation, StepResult

END = 0  # what a choice says when its script is over, for ever


class KnownLaunch:
    """A plan that has run when it is launched."""

    def __init__(self, result: StepResult) -> None:
        self._result = result
        self.plan_id = result.plan_id
        self.fence = self

    def has_passed(self) -> bool:
        return True

    def result(self) -> StepResult:
        return self._result


class ScriptedRunner:
    """Each choice of a request says its own tokens, whatever its prompt; behind them `END`.

    ``scripts``: by request and incarnation, under which name the tokens of that life stand, if not under the request's.
    """

    def __init__(
        self, said: Mapping[str, Sequence[Sequence[int]]], scripts: Mapping[tuple[str, int], str] | None = None
    ) -> None:
        self._said = said
        self._scripts = {} if scripts is None else scripts

    def launch(self, plan: Plan, reservation: Reservation) -> Launch:
        """See `runner.Runner`."""
        del reservation
        tokens = tuple((self._token(plan, row),) if samples else () for row, samples in enumerate(plan.samples))
        return KnownLaunch(StepResult(plan.plan_id, plan.generation, tuple(plan.row_ids()), tokens))

    def _token(self, plan: Plan, row: int) -> int:
        request, choice = plan.requests[row], plan.choices[row]
        index = plan.starts[row] + plan.num_tokens[row] - len(request.prompt)
        script = self._scripts.get((request.request_id, plan.incarnations[row]), request.request_id)
        said = self._said.get(script, ())
        return said[choice][index] if choice < len(said) and index < len(said[choice]) else END


class FailingRunner:
    """Runs what another one does, but for a step of which a row is to blame. ``sick``: the place of that row in the next plan,
    counted round; None: none is. ``blamed``: whose rows were, by request and incarnation."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self.sick: int | None = None
        self.blamed: set[tuple[str, int]] = set()

    def launch(self, plan: Plan, reservation: Reservation) -> Launch:
        """See `runner.Runner`."""
        if self.sick is None or not plan.num_rows:
            return self._runner.launch(plan, reservation)
        row, self.sick = self.sick % plan.num_rows, None
        self.blamed.add((plan.requests[row].request_id, plan.incarnations[row]))
        raise RunnerError(f"plan {plan.plan_id}: row {row} came to no number", (row,))


def byte_spelling() -> list[str]:
    """The character that spells each byte in a byte-level vocabulary: itself if it is printed, else the next from U+0100 on."""
    printed = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in printed else next(others)) for byte in range(0x100)]
