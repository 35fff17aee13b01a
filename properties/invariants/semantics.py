"""What a step computed, against the law of the fingerprint model, and the noise it drew (SE-1, SE-2, ST-3)."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from operator import attrgetter
from typing import Final

import numpy as np

from engine_under_test.types import Plan, SamplingParams
from properties.invariants.predicate import Predicate, predicate, row_named, violation
from properties.invariants.reading import plan_reading
from properties.moment import Execution, Happening, Moment, NoiseAddress
from properties.verdict import Violation

_SAMPLE: Final = 0  # the purpose of a draw that chooses a token (docs/fingerprint.md, "Noise")
_ACCEPT: Final = 1  # of one that keeps a draft or lets it fall
_RECOVER: Final = 2  # of one that chooses a token in the place of a draft that fell


def cells_are_lawful(moment: Moment) -> Violation | None:
    """SE-1: every cell that a row read equals the law's, bit for bit.

    Source: docs/fingerprint.md.
    """
    assert moment.execution is not None
    found, expected = moment.execution.cells, moment.execution.lawful.cells
    if found.shape == expected.shape and found.tobytes() == expected.tobytes():
        return None
    plan, ends = moment.execution.step.plan, moment.execution.row_ends
    if found.shape != expected.shape:
        return violation("SE-1", f"plan {plan.plan_id}", f"cells of shape {found.shape}", f"{expected.shape}")
    number = int(np.flatnonzero((found != expected).any(axis=1))[0])
    row = bisect_right(ends, number)
    position = number - (ends[row - 1] if row else 0)
    table, size = moment.execution.step.reservation.tables[row], moment.after.block_size
    subject = f"{row_named(plan.row_id(row))}, position {position} (block {table[position // size]})"
    return violation("SE-1", subject, _hex(found[number]), f"{_hex(expected[number])}, the law's")


def greedy_tokens_are_lawful(moment: Moment) -> Violation | None:
    """SE-1: each greedy token is the one that the law gives for the tokens before it.

    Source: docs/fingerprint.md, "Next token".
    """
    return _tokens_are_lawful(moment, is_greedy=True)


def seeded_tokens_are_lawful(moment: Moment) -> Violation | None:
    """SE-2: each sampled token is the one that the law gives for its seed, choice and position, whatever the batch.

    Source: docs/fingerprint.md, "Next token" and "Noise"; vllm pull 6698 (seeded state held in the wrong place).
    """
    return _tokens_are_lawful(moment, is_greedy=False)


def _tokens_are_lawful(moment: Moment, *, is_greedy: bool) -> Violation | None:
    assert moment.execution is not None
    found, expected, plan = moment.execution.result.tokens, moment.execution.lawful.tokens, moment.execution.step.plan
    if found == expected:
        return None
    identifier = "SE-1" if is_greedy else "SE-2"
    for i, request in enumerate(plan.requests):
        if (request.sampling.temperature == 0) is is_greedy and found[i : i + 1] != expected[i : i + 1]:
            position = plan.starts[i] + plan.num_tokens[i]
            subject = f"{row_named(plan.row_id(i))}, position {position}"
            return violation(identifier, subject, f"tokens {found[i : i + 1]}", f"{expected[i]}, the law's")
    return None


def draws_stand_at_their_own_addresses(moment: Moment) -> Violation | None:
    """ST-3: a plan draws for a token at the address of its row (seed, choice, position, purpose), and once.

    Two requests with one seed share addresses; then each may draw there once.
    Source: docs/fingerprint.md, "Noise"; flashinfer pull 424 (one uniform for acceptance and residual).
    """
    assert moment.execution is not None
    if moment.execution.addresses == _warm_addresses_of(moment.execution):
        return None
    strange = Counter(moment.execution.addresses)
    strange.subtract(_addresses_of(moment.execution))
    for address, surplus in strange.items():
        if surplus > 0:
            own = sorted(set(_addresses_of(moment.execution)))
            subject = f"plan {moment.execution.step.plan.plan_id}"
            return violation("ST-3", subject, f"{surplus} draws too many at {tuple(address)}", f"one each at {own}")
    return None


def _warm_addresses_of(execution: Execution) -> tuple[tuple[int, int, int, int], ...]:
    """Those of the rows that need noise, in their order."""
    plan = execution.step.plan
    if plan.draft_laws:
        return ()  # of every purpose: see `_addresses_of`
    if plan.num_drafts:
        return tuple([address for address, sampling in _draws_of(plan) if sampling.temperature > 0])
    rows = zip(map(_sampling_of, plan.requests), plan.choices, plan_reading(plan).ends, plan.samples, strict=True)
    return tuple(
        [
            (sampling.seed, choice, end, _SAMPLE)
            for sampling, choice, end, samples in rows
            if samples and sampling.temperature > 0
        ]
    )


_sampling_of: Final = attrgetter("sampling")


def _addresses_of(execution: Execution) -> list[NoiseAddress]:
    plan = execution.step.plan
    found = [address for address, _ in _draws_of(plan)]
    columns = zip(plan.draft_laws, plan.num_drafts, plan_reading(plan).ends, execution.result.tokens, strict=True)
    for row, (law, num, end, tokens) in enumerate(columns if plan.draft_laws else ()):
        if law is None:
            continue
        seed, choice, first = plan.requests[row].sampling.seed, plan.choices[row], end - num
        found += [NoiseAddress(seed, choice, first + place, _ACCEPT) for place in range(num)]
        if len(tokens) <= num:
            found.append(NoiseAddress(seed, choice, first + len(tokens) - 1, _RECOVER))
    return found


def _draws_of(plan: Plan) -> list[tuple[NoiseAddress, SamplingParams]]:
    """Each place for which a row draws: behind its last known token, and behind each draft."""
    num_drafts = plan.num_drafts or (0,) * plan.num_rows
    found = []
    for i, (request, end) in enumerate(zip(plan.requests, plan_reading(plan).ends, strict=True)):
        sampling, positions = request.sampling, range(end - num_drafts[i], end + 1) if plan.samples[i] else ()
        found += [(NoiseAddress(sampling.seed, plan.choices[i], position, _SAMPLE), sampling) for position in positions]
    return found


def _hex(cell: np.ndarray) -> str:
    return f"({int(cell[0]):#018x}, {int(cell[1]):#018x})"


PREDICATES: Final[tuple[Predicate, ...]] = (
    predicate("SE-1", cells_are_lawful, Happening.LANDED, needs=("execution",), can_wait=True),
    predicate("SE-1", greedy_tokens_are_lawful, Happening.LANDED, needs=("execution",), can_wait=True),
    predicate("SE-2", seeded_tokens_are_lawful, Happening.LANDED, needs=("execution",), can_wait=True),
    predicate("ST-3", draws_stand_at_their_own_addresses, Happening.LANDED, needs=("execution",)),
)
