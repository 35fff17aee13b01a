"""The suite `transfers-in-turn`: short stories of a store and a load, struck at every place by everything that can befall it.

Owns the stories, the strikes and their enumeration, on devices that are prompt, slow to read or to write. Before them come the
pairs of `twins.py`, which must not load each other's. What must hold is the catalogue's: whoever waits for a copy gives its
blocks away behind it, and everybody gets the same tokens.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import product
from typing import Final, NamedTuple

from chaos.enumerated import result_of, run_alone
from chaos.nemesis.base import befall
from chaos.twins import SPEC as SPEC_OF_TWINS
from chaos.twins import stories as stories_of_twins
from engine_under_test.caps import LinkFault
from engine_under_test.config import EngineConfig
from engine_under_test.events import DeviceChoice, Event, EventKind
from engine_under_test.execution.schedule import TURN
from engine_under_test.seams import Stream
from engine_under_test.types import Request, SamplingParams
from models.build import config_to
from models.machines.driving import Driver
from models.machines.tally import Tally
from properties.history import OpRecord
from properties.op import Op, OpKind
from properties.suite import CheckResult, Profile, SuiteContext

SPEC: Final = {
    "target": "assay",
    "config": config_to(
        EngineConfig(num_blocks=12, block_size=2, max_tokens_per_step=16, max_num_seqs=3, vocab_size=16, max_plans_in_flight=2)
    ),
    "hasher": "blake2b",
    "device": "streams",
    "remote": {"capacity_blocks": 24},
}
_PROMPT = (3, 1, 4, 1, 5, 9, 2, 6, 5)
_STEP, _POLL = Op(OpKind.STEP), Op(OpKind.POLL)
_LATE_TURNS, _MOST_COPIES = 12, 4
_STRIDES: Final = {Profile.QUICK: 12, Profile.PR: 6, Profile.NIGHTLY: 1}
_DEVICES: Final = (Stream.COPY_OUT, Stream.TRANSFER, None)  # what is slow


def _asks(name: str, prompt: tuple[int, ...], max_tokens: int = 2) -> Op:
    return Op(OpKind.ADD, Request(name, prompt, SamplingParams(max_tokens=max_tokens)))


_CROWD: Final = (_asks("crowd", tuple(range(15)) + (7,) * 4, 3), _STEP, _POLL)  # takes all blocks but two
_READER = _asks("reader", _PROMPT)
_TIME_IS_UP: Final = "the reader's time is up"
_HURRIED: Final = replace(_READER, request=Request("reader", _PROMPT, SamplingParams(max_tokens=2), deadline_s=1.0))
_WRITER: Final = (
    *(_POLL,) * 3,  # the two ends greet
    *(_asks("writer", _PROMPT), _STEP, _STEP),
    *(_POLL,) * 4,  # what it computed is stored
)
_OTHERS: Final = [_asks(f"other {each}", tuple(range(each, each + 9)), 1) for each in (2, 4, 6)]


class Story(NamedTuple):
    """``reader``: the place at which the reader comes, if one does. ``strikes``: the names of those that it is struck with."""

    ops: tuple[Op, ...]
    reader: int
    strikes: tuple[str, ...]


def _story(*ops: Op, strikes: tuple[str, ...] = ()) -> Story:
    names = ["" if op.request is None else op.request.request_id for op in ops]
    return Story(ops, names.index("reader") if "reader" in names else len(ops), strikes or tuple(_STRIKES))


_STRIKES: Final[Mapping[str, tuple[Op, ...]]] = {
    "nothing": (),
    "the reader aborts": (Op(OpKind.ABORT, request_id="reader"),),
    "the writer aborts": (Op(OpKind.ABORT, request_id="writer"),),
    "a cut": (befall(LinkFault.CUT), _POLL),
    "a stall": (befall(LinkFault.STALL), Op(OpKind.ADVANCE, seconds=5.0), _POLL, befall(LinkFault.NONE)),
    "no answer comes": (  # not until a store's time is up, nor to its abort
        *(befall(LinkFault.STALL), Op(OpKind.ADVANCE, seconds=9.0), _POLL, _POLL),
        *(Op(OpKind.ADVANCE, seconds=6.0), _POLL, _POLL, befall(LinkFault.NONE)),
    ),
    "time passes": (Op(OpKind.ADVANCE, seconds=9.0), _POLL),
    "lost messages": (befall(LinkFault.LOSE), _POLL, befall(LinkFault.NONE)),
    "repeated messages": (befall(LinkFault.REPEAT), _POLL, befall(LinkFault.NONE)),
    "the store dies": (befall(LinkFault.STORE_DIES), _POLL),
    "the store rots": (befall(LinkFault.ROT),),
    "a reset": (Op(OpKind.RESET_CACHE),),
    "a restart": (Op(OpKind.RESTART),),
    "held fences": (Op(OpKind.HOLD_FENCES, on=True),),
    "a refused block": (Op(OpKind.REFUSE_BLOCK, k=1),),
    _TIME_IS_UP: (Op(OpKind.ADVANCE, seconds=1.0), _POLL),  # sooner than that of its load
}
_STRUCK: Final = (
    _story(  # all of it is loaded, beside steps that fill what was emptied
        *(*_WRITER, _asks("neighbour", (8, 8, 8), 6), _STEP, Op(OpKind.RESET_CACHE), _READER),
        *(_POLL, Op(OpKind.PLAN), _POLL, _STEP, _POLL, _POLL, Op(OpKind.LAND)),
        *(_STEP,) * 3,
    ),
    _story(  # the tail of it, which was evicted, is loaded behind the head
        *(*_WRITER, _asks("evictor", tuple(range(1, 16)) + (0,) * 4, 1), _STEP, _STEP, _STEP, _READER),
        *(_POLL,) * 5,
        *(_STEP,) * 2,
    ),
    _story(  # the head of it waits for the end of a plan that has lost its request, when the tail is loaded behind it
        *(*_WRITER, _asks("evictor", tuple(range(1, 16)) + (0,) * 4, 1), _STEP, _STEP, _STEP),
        *(_asks("holder", _PROMPT[:5], 1), Op(OpKind.PLAN), Op(OpKind.ABORT, request_id="holder"), _READER),
        *(*(_POLL,) * 5, Op(OpKind.LAND), *(_STEP,) * 2),
        strikes=("nothing", "the reader aborts", "held fences", "a cut", _TIME_IS_UP),
    ),
    _story(  # a short one is loaded while a neighbour's blocks are stored one after the other
        *(*(_POLL,) * 3, _asks("writer", _PROMPT[:5]), _STEP, _STEP, *(_POLL,) * 9, Op(OpKind.RESET_CACHE)),
        *(_asks("neighbour", (8,) * 7, 1), _STEP, _STEP, _asks("reader", _PROMPT[:5])),
        *(_POLL,) * 8,
        strikes=("nothing", "a stall"),
    ),
    _story(  # whoever takes the blocks next stores them as well
        *_WRITER,
        *(op for other in _OTHERS for op in (other, _STEP, _STEP, *(_POLL,) * 4)),
        strikes=("the writer aborts", "time passes", "a reset", "a restart"),
    ),
)
STORIES: Final = tuple([story.ops for story in _STRUCK[:2]])  # a store and a load, as they go
_POINTED: Final[Mapping[Stream | None, tuple[str, ...]]] = {  # strikes that meet a copy on the slow stream, at every place
    Stream.COPY_OUT: ("time passes",),  # from the begin up to the reader
    Stream.TRANSFER: ("the reader aborts", "a cut"),  # from the reader on
}
_FLOORS: Final = {"loads under way when struck": 60, "blocks held by transfers when struck": 150, "loads that came": 100}


def run_transfers_in_turn(context: SuiteContext) -> CheckResult:
    """Each strike at each place, on each device; in the smaller profiles at some places, others for each strike and seed, but
    for those that meet a copy under way, and in quick on slow devices alone."""
    is_quick = context.profile is Profile.QUICK
    tally = Tally()
    missed = _run_twins(tally)
    stories = list(_stories(_STRIDES[context.profile], context.seed, _DEVICES[: 2 if is_quick else 3]))
    for done, (place, story) in enumerate(stories if tally.failure is None else ()):
        driver = run_alone(SPEC, story)
        tally.add(driver)
        if tally.failure is not None:
            break
        tally.reached.update(_met(driver, place))
        context.progress(done, len(stories))
    missed += [
        f"{what}: {tally.reached[what]} of {floor}"
        for what, floor in _FLOORS.items()
        if not is_quick and tally.reached[what] < floor
    ]
    places = sum((len(story.ops) + 1) * len(story.strikes) for story in _STRUCK)
    note = f"{len(_STRIKES)} kinds of strikes, {places} places in {len(_STRUCK)} stories of stores and loads"
    return result_of("transfers-in-turn", tally, context, tuple(missed), note)


def _run_twins(tally: Tally) -> list[str]:
    """Up to the first failure; where a twin did not load as much as it shares, or the other way round."""
    missed = []
    for what, num_shared, ops in stories_of_twins():
        driver = run_alone(SPEC_OF_TWINS, ops)
        tally.add(driver)
        if tally.failure is not None:
            return []
        loads = [event for event in driver.world.history.of(Event) if event.kind is EventKind.LOADED]
        tally.reached["twins that asked"] += 1
        if (loaded := sum([len(event.blocks) for event in loads])) != num_shared:
            missed.append(f"twins that differ in {what}: {loaded} blocks loaded, {num_shared} shared")
    return missed


def _stories(stride: int, seed: int, devices: tuple[Stream | None, ...]) -> Iterator[tuple[int, tuple[Op, ...]]]:
    """With the place of the strike."""
    for slow, story in product(devices, _STRUCK):
        for number, name in enumerate(story.strikes):
            for place in range(len(story.ops) + 1):
                if (place - number - seed) % stride and not _is_pointed(story, place, name, slow):
                    continue
                ops = (*story.ops[:place], *_STRIKES[name], *_CROWD, *story.ops[place:])
                if name == _TIME_IS_UP:
                    if place <= story.reader:
                        continue  # it would be refused at the door
                    ops = tuple([_HURRIED if op is _READER else op for op in ops])
                yield place, (*(ops if slow is None else [_late(op, slow) for op in ops]), Op(OpKind.DRAIN))


def _is_pointed(story: Story, place: int, name: str, slow: Stream | None) -> bool:
    """Whether it is so in every profile, and for every seed."""
    if name == "nothing" and place == len(story.ops):
        return True  # the story as it goes without a strike and without a crowd
    is_readers = slow is Stream.TRANSFER
    return name in _POINTED.get(slow, ()) and (place > story.reader if is_readers else place <= len(_WRITER))


def _late(op: Op, slow: Stream) -> Op:
    """Whatever it puts on this stream takes some turns."""
    return replace(op, choices=tuple([DeviceChoice(slow, kth, _LATE_TURNS * TURN) for kth in range(_MOST_COPIES)]))


def _met(driver: Driver, place: int) -> Counter[str]:
    """What was under way before the operation at `place`, and what came of the loads."""
    met: Counter[str] = Counter()
    ops = loading = held = 0
    for record in driver.world.history.records:
        if isinstance(record, OpRecord):
            if ops == place:
                met["loads under way when struck"] += loading > 0
                met["blocks held by transfers when struck"] += held > 0
            ops += 1
        elif isinstance(record, Event):
            loading += (record.kind is EventKind.LOADING) - (record.kind is EventKind.LOAD_ENDED)
            held += len(record.blocks) * _HOLDS.get(record.kind, 0)
            met["loads that came"] += record.kind is EventKind.LOADED
    return met


_HOLDS: Final = {EventKind.PINNED: 1, EventKind.CLAIMED: 1, EventKind.UNPINNED: -1}
