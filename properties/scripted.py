"""A runner whose tokens are known beforehand, and the alphabet that byte-level vocabularies spell bytes in: for whoever judges
texts.

Owns: what each choice says. Never: a vocabulary, or a judgement. Free of torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from engine_under_test.errors import RunnerError
from engine_under_test.execution.runner import Launch, Runner
from engine_under_test.sampling.speculation import Ask, Declaration, Knowledge, Proposal, Repair
from engine_under_test.seams import Noise
from engine_under_test.types import Logprobs, Plan, Reservation, RowId, StepResult

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
    """Each choice of a request says its own tokens, whatever its prompt; behind them `END`. A draft stands where it is the
    token that would be said. The log-probability of the n-th token is -n, whatever it is.

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
        tokens = tuple(self._tokens(plan, row) if samples else () for row, samples in enumerate(plan.samples))
        told = tuple(_told(plan, row, each) for row, each in enumerate(tokens))
        return KnownLaunch(StepResult(plan.plan_id, plan.generation, tuple(plan.row_ids()), tokens, told if any(told) else ()))

    def said(self, row: RowId, index: int) -> int:
        """The token that a choice says at this place of its output."""
        said = self._said.get(self._scripts.get((row.request_id, row.incarnation), row.request_id), ())
        return said[row.choice][index] if row.choice < len(said) and index < len(said[row.choice]) else END

    def _tokens(self, plan: Plan, row: int) -> tuple[int, ...]:
        drafts, row_id = plan.drafts()[row], plan.row_id(row)
        index = _index(plan, row)
        tokens = [self.said(row_id, index + place) for place in range(len(drafts) + 1)]
        num_kept = next((place for place, draft in enumerate(drafts) if draft != tokens[place]), len(drafts))
        return tuple(tokens[: num_kept + 1])


def _index(plan: Plan, row: int) -> int:
    """Where in its output the first token of a row will stand."""
    num_drafts = plan.num_drafts[row] if plan.num_drafts else 0
    return plan.starts[row] + plan.num_tokens[row] - num_drafts - len(plan.requests[row].prompt)


def _told(plan: Plan, row: int, tokens: Sequence[int]) -> tuple[Logprobs, ...]:
    if plan.requests[row].sampling.logprobs is None:
        return ()
    first = _index(plan, row) + 1
    return tuple(Logprobs((token,), (-float(number),)) for number, token in enumerate(tokens, first))


class ScriptDrafts:
    """Proposes what a `ScriptedRunner` is about to say; each third token of an output is another one."""

    def __init__(self, runner: ScriptedRunner, vocab_size: int, max_drafts: int) -> None:
        self._runner = runner
        self._vocab_size = vocab_size
        self._max_drafts = max_drafts

    @property
    def declaration(self) -> Declaration:
        """See `speculation.Proposer`."""
        return Declaration("script", self._max_drafts, Knowledge.CERTAIN)

    def propose(self, asks: Sequence[Ask], noise: Noise) -> Proposal:
        """See `speculation.Proposer`."""
        del noise  # it knows what comes
        return Proposal(tuple(map(self._of, asks)))

    def repair(self, repairs: Sequence[Repair]) -> None:
        """Nothing is kept."""

    def _of(self, ask: Ask) -> tuple[int, ...]:
        first = len(ask.tokens) - ask.prompt_len
        places = range(first, first + min(ask.width, self._max_drafts))
        return tuple((self._runner.said(ask.row, place) + (place % 3 == 2)) % self._vocab_size for place in places)


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
        raise RunnerError(f"plan {plan.plan_id}: row {row} came to no number", (row,), distrusts=True)


def byte_spelling() -> list[str]:
    """The character that spells each byte in a byte-level vocabulary: itself if it is printed, else the next from U+0100 on."""
    printed = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in printed else next(others)) for byte in range(0x100)]
