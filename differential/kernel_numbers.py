"""The suite `kernel-numbers`: each Triton kernel by itself, under Triton's interpreter, beside a dense attention in float64.

Owns how a case is run and judged, and what becomes of one that fails. No engine, no plan and no model: keys and values are
stored through the kernel that stores, and attended through the others. Everything that nobody may read is NaN: slots of
nobody, what the padding of a table names, queries of nobody, and all memory that is allocated in between. Every access lies in
a tensor of its launch. Programs run in the order of the grid and backwards, where results must be the same bit for bit: a
device runs them in any. The back ends in torch are here for one thing: pages that 32 bits do not count.
"""

from __future__ import annotations

import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import replace

import torch

from differential.kernel_cases import KERNELS, Case, cases, moved_far, smaller
from differential.kernel_verification import FLOORS, drafted_cases, wrong_verification
from differential.threads import one_thread
from engine_under_test.execution import kernels
from engine_under_test.execution.attention import ATTENTIONS
from engine_under_test.execution.batch import Batch
from properties.paged import Paged, dense_attention, lay_out
from properties.paged_kernels import OutsideError, Watch, bits, excess, poisoned_memory, run_decode, run_prefill, watched
from properties.suite import CheckResult, Failure, Profile, SuiteContext
from properties.verdict import Violation, verdict_of

SUITE_ID = "kernel-numbers"
FAR = "pages past 32 bits"
_MOST_STORED = 200  # tokens: the interpreter takes a millisecond for each


def check_kernel_numbers(context: SuiteContext, told: Callable[[Profile], Iterable[Case]] = cases) -> CheckResult:
    """The suite, up to the first case that is wrong, which is shrunk."""
    reached: Counter[str] = Counter()
    missed: list[str] = []
    failures: tuple[Failure, ...] = ()
    all_cases = tuple(told(context.profile))
    done = 0
    with one_thread(), poisoned_memory(), warnings.catch_warnings():
        # The interpreter computes in numpy, which warns of rows that are not numbers and of integers that wrap.
        warnings.simplefilter("ignore", RuntimeWarning)
        for done, case in enumerate(all_cases, start=1):
            try:
                violation = judge(case, context.seed)
            except OSError as error:
                missed.append(f"{case.name}: the machine gives no address space for it ({error.strerror})")
                continue
            if violation is not None:
                failures = (_failure(case, violation, context),)
                break
            reached.update(_reached(case))
            context.progress(done, len(all_cases))
        failures = failures or _of_verification(context, reached)
    missed += [f"{name} {reached[name]} of {least}" for name, least in FLOORS.items() if reached[name] < least]
    return CheckResult(
        SUITE_ID,
        verdict_of(failures, missed),
        examples=done,
        ops=reached["queries"],
        reached=dict(reached),
        missed=tuple(missed),
        invariants={
            "SE-3": reached["queries"],
            "SE-4": reached["orders compared"],
            "KV-16": done,
            "ST-1": reached["verifications compared"],
        },
        failures=failures,
        note=f"{done} layouts, {reached['queries']:,} queries, each kernel by itself under the interpreter; "
        f"{reached['verifications compared']} verifications as in torch, bit for bit",
    )


def _of_verification(context: SuiteContext, reached: Counter[str]) -> tuple[Failure, ...]:
    """The first case of drafts in which a kernel comes to something else than torch."""
    for case in drafted_cases(context.profile):
        found = wrong_verification(case, context.profile, context.seed, _in_order, reached)
        if found is not None:
            again = {"suite": SUITE_ID, "profile": context.profile.value, "seed": context.seed}
            return (Failure(found, f"{SUITE_ID}#{context.seed:#x}", again),)
    return ()


def judge(case: Case, seed: int) -> Violation | None:
    """What is wrong with a case, if anything is."""
    paged = lay_out(case.shape, seed % 2**31)
    wanted = dense_attention(paged)
    far = moved_far(paged, case.back_end) if case.is_far else paged
    before: torch.Tensor | None = None
    for order in case.orders:
        found: torch.Tensor | Violation
        try:
            found = _stored(case, far, order) or _run(case, far, order)
        except Exception as error:  # whatever it is: the arguments are lawful
            return _raised(case, error, order)
        if isinstance(found, Violation):
            return found
        if (violation := _wrong_number(case, far, found, wanted, order)) is not None:
            return violation
        if before is not None and not torch.equal(bits(found), bits(before)):
            return _broken(
                case, "SE-4", "batch invariance", "other bits when the programs of a grid run backwards", "the same bits"
            )
        before = found
    return None


def _stored(case: Case, paged: Paged, order: str) -> Violation | None:
    """Stores what the layout holds in a store that holds poison, rows of nobody beside it."""
    slots = sorted({slot for row in paged.owned for slot in row})
    if len(slots) > _MOST_STORED:
        return None
    generator = torch.Generator().manual_seed(len(slots))
    places = torch.tensor([*slots, -1, -7])[torch.randperm(len(slots) + 2, generator=generator)]
    kept = paged.key_cache[places], paged.value_cache[places]  # of nobody: some row
    for cache in (paged.key_cache, paged.value_cache):
        cache[slots] = torch.nan
    if case.back_end == KERNELS:
        with _in_order(order):
            kernels.store_kv(*kept, paged.key_cache, paged.value_cache, places.to(torch.int32))
    else:
        is_token = places >= 0
        keys, values = (each[is_token] for each in kept)
        ATTENTIONS[case.back_end]().store(keys, values, paged.key_cache, paged.value_cache, places[is_token])
    for name, cache, numbers in zip(("key", "value"), (paged.key_cache, paged.value_cache), kept, strict=True):
        for place, number in zip(places.tolist(), numbers, strict=True):
            if place >= 0 and not torch.equal(bits(cache[place]), bits(number)):
                return _broken(case, "KV-16", "poison", f"a {name} that is not in the slot {place}", "what was stored there")
        if not case.is_far and not cache[_of_nobody(cache, slots)].isnan().all():
            return _broken(case, "KV-16", "poison", f"a {name} in a slot that was not listed", "only listed slots written")
    return None


def _of_nobody(cache: torch.Tensor, slots: list[int]) -> torch.Tensor:
    is_nobodys = torch.ones(cache.shape[0], dtype=torch.bool)
    is_nobodys[slots] = False
    return is_nobodys


def _run(case: Case, paged: Paged, order: str) -> torch.Tensor:
    """[queries or rows, heads, head]."""
    if case.back_end != KERNELS:
        return ATTENTIONS[case.back_end]().attend(paged.queries, paged.key_cache, paged.value_cache, batch_of(paged))
    with _in_order(order):
        return run_decode(paged) if case.is_decode else run_prefill(paged)


def _in_order(order: str) -> AbstractContextManager[Watch]:
    return watched(order=range if order == "forwards" else _backwards)


def _backwards(num: int) -> range:
    return range(num - 1, -1, -1)


def batch_of(paged: Paged) -> Batch:
    """What a runner would make of the plan that a layout stands for."""
    rows = paged.shape.rows
    nothing = torch.zeros(0, dtype=torch.int64)
    positions = torch.tensor([start + each for start, count in rows for each in range(count)])
    return Batch(
        paged.shape.block, nothing, positions, nothing, paged.tables, paged.lengths, paged.starts, paged.row_begins, nothing,
        tuple(paged.lengths.tolist()), tuple(paged.starts.tolist()), tuple(paged.row_begins.tolist()), (),
    )  # fmt: skip


# What is wrong


def _wrong_number(case: Case, paged: Paged, found: torch.Tensor, wanted: torch.Tensor, order: str) -> Violation | None:
    shape = case.shape
    if case.is_decode and case.back_end == KERNELS:
        of_nobody, found = found[paged.lengths == 0], found[paged.lengths > 0]
    else:
        num_spare = shape.num_spare_queries
        of_nobody = found[len(found) - num_spare :]
    if of_nobody.isnan().any() or of_nobody.any():
        return _broken(case, "KV-16", "poison", "numbers in the result of a row or query of nobody", "zeros")
    worst = excess(found, wanted, shape.dtype, shape.height)
    if not len(worst) or worst.max() <= 1:
        return None
    query = int(worst.argmax())
    row, position = [(row, start + each) for row, (start, count) in enumerate(shape.rows) for each in range(count)][query]
    errors = (found[query].double() - wanted[query]).abs().nan_to_num(nan=torch.inf).amax(dim=1)
    head = int(errors.argmax())
    is_poison = _is_right_without_poison(case, paged, wanted)
    facts = (
        f"{'order':<13} programs of a grid {order}",
        f"{'wrong heads':<13} {_numbers(errors > errors.median() * 8) or str(head)} of this query",
        f"{'wrong queries':<13} {int((worst > 1).sum())} of {len(worst)}",
        *([f"{'poison':<13} with zeros in its place the result is right"] if is_poison else []),
    )
    said = f"head {head} of the query at position {position} off by {errors[head]:.3g}, {worst[query]:.3g} times the tolerance"
    return _broken(case, "SE-3", "log-probabilities", f"row {row}: {said}", "a dense attention in float64", facts)


def _is_right_without_poison(case: Case, paged: Paged, wanted: torch.Tensor) -> bool:
    """Whether zeros in the store where nobody's slots are make it right. What is allocated stays poisoned."""
    if case.is_far:
        return False
    keys, values = paged.key_cache.nan_to_num(nan=0.0), paged.value_cache.nan_to_num(nan=0.0)
    found = _run(case, replace(paged, key_cache=keys, value_cache=values), case.orders[0])
    found = found[paged.lengths > 0] if case.is_decode else found
    return bool(excess(found, wanted, case.shape.dtype, case.shape.height).max() <= 1)


def _numbers(chosen: torch.Tensor) -> str:
    return ", ".join(map(str, chosen.nonzero()[:, 0].tolist()))


def _raised(case: Case, error: Exception, order: str) -> Violation:
    cause = error.__cause__ or error
    if isinstance(cause, OutsideError):
        return _broken(
            case, "KV-16", "poison", str(cause), "only slots, entries and numbers of its rows", (f"{'order':<13} {order}",)
        )
    return _broken(case, "SE-3", "log-probabilities", f"{type(cause).__name__}: {cause}", "a result")


def _broken(case: Case, invariant: str, name: str, found: str, expected: str, facts: tuple[str, ...] = ()) -> Violation:
    return Violation(invariant, name, case.name, found, expected, facts)


def _failure(case: Case, violation: Violation, context: SuiteContext) -> Failure:
    """The violation in the smallest case found."""
    ends_at = time.monotonic() + context.shrink_s
    is_better = True
    while is_better:
        is_better = False
        for less in smaller(case):
            found = judge(less, context.seed) if time.monotonic() < ends_at else None
            if found is not None and found.invariant == violation.invariant:
                case, violation, is_better = less, found, True
                break
    again = {"suite": SUITE_ID, "profile": context.profile.value, "seed": context.seed}
    return Failure(violation, f"{SUITE_ID}#{context.seed:#x}", again)


def _reached(case: Case) -> dict[str, int]:
    shape = case.shape
    ends = [start + count for start, count in shape.rows]
    return {
        "queries": sum(count for _, count in shape.rows) * len(case.orders),
        "orders compared": len(case.orders) - 1,
        "contexts of more than 8,192": sum(end > 8192 for end in ends),
        "more than 64 rows": int(len(ends) > 64),
        "groups of more than 16": int(shape.heads // shape.kv_heads > 16),
        "scores beyond the exponential": int(shape.height > 0),
        FAR: int(case.is_far),
    }
