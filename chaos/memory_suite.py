"""The suite `memory`: in small worlds each allocation of a step is refused in turn, on either side of the bus; and free memory
lies in pieces of every size.

Owns the enumeration and its floors: how much is asked for is counted in a run without a refusal, so that nothing is left out
when a step asks for more. What must hold is the catalogue's: above all, whoever is not refused twice gets the same tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice

from chaos.enumerated import result_of, run_alone
from chaos.storm import SHAPES
from engine_under_test.seams import Space
from models.machines.driving import Driver
from models.machines.tally import Tally
from models.streamed_device import KthRefused, StreamedDevice
from models.walk import WalkShape, walk_ops
from properties.op import Op, OpKind
from properties.suite import CheckResult, Profile, SuiteContext

_WORLDS = ("small-deep", "small-deeper", "priority")  # names in `SHAPES`
_SHORT, _TO_THE_END = 14, 12  # operations
_WORD_BYTES = 8
_FOR_GOOD = 3  # of so many allocations one is refused with all behind it: a step asks for five, so that each of them has turns
_NAMES = {Space.DEVICE: "allocations of the device", Space.PINNED: "pinned buffers", Space.HOST: "allocations of the host"}


def run_memory(context: SuiteContext) -> CheckResult:
    """Each k-th allocation alone, some with all behind them until memory is back; each size of a piece; up to a violation."""
    is_quick = context.profile is Profile.QUICK
    names = _WORLDS[: 1 if is_quick else len(_WORLDS)]
    tally, asked, turns, sizes, missed = Tally(), 0, 0, 0, list[str]()
    for name in names:
        spec = {**SHAPES[name].spec(), "device": "streams"}
        base = short_walk(context.seed, SHAPES[name])
        calm = _memory_of(run_alone(spec, base))
        pieces = calm.largest_asked // _WORD_BYTES  # of so many words, all that is asked for fits
        asked, sizes = asked + calm.num_asked, sizes + pieces - 1
        refusals = tuple(_refusals(base, calm.num_asked, is_quick))
        stories = (*refusals, *_pieces(base, pieces))
        turns += len(refusals)
        for done, story in enumerate(stories):
            driver = run_alone(spec, story)
            tally.add(driver)
            if tally.failure is not None:
                break
            _count(tally, _memory_of(driver))
            context.progress(done, len(stories))
        if tally.failure is not None:
            break
        missed += [f"{name}: {what}, none asked for" for space, what in _NAMES.items() if not calm.asked[space]]
    if tally.failure is None:
        for what, floor in (("allocations in turn", turns), ("sizes of pieces in turn", sizes)):
            if (found := tally.reached[what]) != floor:
                missed.append(f"{what}: {found} of {floor}")
    return result_of(
        "memory", tally, context, tuple(missed), f"each of {asked} allocations refused in turn, in {len(names)} worlds"
    )


def _refusals(base: tuple[Op, ...], count: int, is_quick: bool) -> Iterator[tuple[Op, ...]]:
    """Each alone, and every third also for good, which means until the drain, which heals every fault; if it must be quick,
    in place of it alone."""
    for k in range(1, count + 1):
        is_third = k % _FOR_GOOD == 0
        for is_for_good in (is_third,) if is_quick else (False, True) if is_third else (False,):
            yield (Op(OpKind.REFUSE_MEMORY, k=k, on=is_for_good), *base, Op(OpKind.DRAIN))


def _pieces(base: tuple[Op, ...], enough: int) -> Iterator[tuple[Op, ...]]:
    for num_words in range(1, enough):
        yield (Op(OpKind.FRAGMENT_MEMORY, k=num_words), *base, Op(OpKind.DRAIN))


def _count(tally: Tally, memory: KthRefused) -> None:
    for space, what in _NAMES.items():
        tally.reached[f"{what} refused"] += memory.refused[space]
    tally.reached["allocations in turn"] += memory.num_refused > 0
    tally.reached["allocations without a piece"] += memory.num_scattered
    tally.reached["sizes of pieces in turn"] += memory.num_scattered > 0


def short_walk(seed: int, shape: WalkShape) -> tuple[Op, ...]:
    """A little of everything but faults, and as many steps as it takes to come to the end."""
    calm = replace(shape, fault_rate=0.0, restart_rate=0.0, refused_share=0.0, deadline_share=0.0)
    return (*islice(walk_ops(seed, calm), _SHORT), *(Op(OpKind.STEP),) * _TO_THE_END)


def _memory_of(driver: Driver) -> KthRefused:
    device = driver.world.device
    assert isinstance(device, StreamedDevice)
    return device.memory
