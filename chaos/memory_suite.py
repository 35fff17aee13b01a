"""The suites `memory` and `memory-of-transfers`: in small worlds each allocation is refused in turn, on either side of the bus,
be it of a step or of a transfer; and free memory lies in pieces of every size.

Owns the enumeration and its floors: how much is asked for is counted in a run without a refusal, so that nothing is left out
when a step asks for more. What must hold is the catalogue's: above all, whoever is not refused twice gets the same tokens, and
a transfer that has no buffer for a block goes without it, at nobody's cost.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import islice

from chaos.enumerated import result_of, run_alone
from chaos.storm import SHAPES
from chaos.transfers_in_turn import SPEC as TRANSFERS_SPEC
from chaos.transfers_in_turn import STORIES
from engine_under_test.seams import Space
from models.machines.driving import Driver
from models.machines.tally import Tally
from models.shrink import Spec
from models.streamed_device import KthRefused, StreamedDevice
from models.walk import WalkShape, walk_ops
from properties.op import Op, OpKind
from properties.suite import CheckResult, Profile, SuiteContext

_WORLDS = ("small-deep", "small-deeper", "priority")  # names in `SHAPES`
_SHORT, _TO_THE_END = 14, 12  # operations
_WORD_BYTES = 8
_FOR_GOOD = 3  # of so many allocations one is refused with all behind it: a step asks for five, so that each of them has turns
_UNMOVED = "blocks of transfers without a buffer"
_NAMES = {Space.DEVICE: "allocations of the device", Space.PINNED: "pinned buffers", Space.HOST: "allocations of the host"}


def run_memory(context: SuiteContext) -> CheckResult:
    """Each k-th allocation alone, some with all behind them until memory is back; each size of a piece; up to a violation."""
    names = _WORLDS[: 1 if context.profile is Profile.QUICK else len(_WORLDS)]
    worlds = {name: ({**SHAPES[name].spec(), "device": "streams"}, short_walk(context.seed, SHAPES[name])) for name in names}
    return _run("memory", context, worlds)


def run_memory_of_transfers(context: SuiteContext) -> CheckResult:
    """Likewise in the stories of a store and a load; in quick each k-th allocation alone, and nothing else."""
    worlds = {f"story {number}": (TRANSFERS_SPEC, story) for number, story in enumerate(STORIES, 1)}
    is_brief = context.profile is Profile.QUICK
    return _run("memory-of-transfers", context, worlds, {_UNMOVED: 10}, is_brief=is_brief)


def _run(
    suite_id: str,
    context: SuiteContext,
    worlds: Mapping[str, tuple[Spec, tuple[Op, ...]]],
    floors: Mapping[str, int] | None = None,
    *,
    is_brief: bool = False,
) -> CheckResult:
    """``worlds``: by name, how each is built and what happens in it where nothing is refused."""
    kinds = (False,) if is_brief else (True,) if context.profile is Profile.QUICK else (False, True)
    tally, asked, turns, sizes, missed = Tally(), 0, 0, 0, list[str]()
    for name, (spec, base) in worlds.items():
        calm = _memory_of(run_alone(spec, base))
        pieces = 1 if is_brief else calm.largest_asked // _WORD_BYTES  # of so many words, all that is asked for fits
        asked, sizes = asked + calm.num_asked, sizes + pieces - 1
        refusals = tuple(_refusals(base, calm.num_asked, kinds))
        stories = (*refusals, *_pieces(base, pieces))
        turns += len(refusals)
        for done, story in enumerate(stories):
            driver = run_alone(spec, story)
            tally.add(driver)
            if tally.failure is not None:
                break
            _count(tally, driver)
            context.progress(done, len(stories))
        if tally.failure is not None:
            break
        missed += [f"{name}: {what}, none asked for" for space, what in _NAMES.items() if not calm.asked[space]]
    if tally.failure is None:
        for what, floor in (("allocations in turn", turns), ("sizes of pieces in turn", sizes)):
            if (found := tally.reached[what]) != floor:
                missed.append(f"{what}: {found} of {floor}")
        for what, floor in (floors or {}).items():
            if (found := tally.reached[what]) < floor:
                missed.append(f"{what}: {found} of {floor}")
    return result_of(
        suite_id, tally, context, tuple(missed), f"each of {asked} allocations refused in turn, in {len(worlds)} worlds"
    )


def _refusals(base: tuple[Op, ...], count: int, kinds: tuple[bool, ...]) -> Iterator[tuple[Op, ...]]:
    """Each alone, every third for good, which means until the drain, which heals every fault; ``kinds``: one of the two there,
    or both."""
    for k in range(1, count + 1):
        for is_for_good in kinds if k % _FOR_GOOD == 0 else (False,):
            yield (Op(OpKind.REFUSE_MEMORY, k=k, on=is_for_good), *base, Op(OpKind.DRAIN))


def _pieces(base: tuple[Op, ...], enough: int) -> Iterator[tuple[Op, ...]]:
    for num_words in range(1, enough):
        yield (Op(OpKind.FRAGMENT_MEMORY, k=num_words), *base, Op(OpKind.DRAIN))


def _count(tally: Tally, driver: Driver) -> None:
    memory = _memory_of(driver)
    tally.reached[_UNMOVED] += _device_of(driver).num_unmoved
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
    return _device_of(driver).memory


def _device_of(driver: Driver) -> StreamedDevice:
    device = driver.world.device
    assert isinstance(device, StreamedDevice)
    return device
