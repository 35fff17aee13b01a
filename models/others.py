"""The worlds in which an engine written by others is put under test, and the stories that are told in each.

Owns the families: each is a part of what such an engine offers, in worlds of its own, so that what breaks in one does not hide
what the others hold. Knows the targets by name only; what is judged stands where it stands for our engine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from hypothesis import strategies as st

from engine_under_test.config import EngineConfig
from models.reach import Reach
from models.scenarios import DRAIN, PLAN, STEP, VOCAB_SIZE, Scenario, abort, add, land
from models.walk import WalkShape

Spec = dict[str, Any]
SpecOf = Callable[..., Spec]

SHAPES = ((4, 4), (6, 5), (4, 8))  # blocks, and tokens of a block
ABORTS = (Reach.ABORT_UNPLANNED, Reach.ABORT_BETWEEN_CHUNKS, Reach.ABORT_LAUNCHED)


@dataclass(frozen=True, slots=True)
class Family:
    """Worlds of one target.

    ``config``, ``options``: what is fixed in all of them. ``drawn``: what the machine draws among the options. ``choices``:
    requests may ask for several. ``outgrows``: some can never fit, and are accepted all the same. ``floors``: what must have
    been reached. ``tells``: the stories, given a spec for each shape.
    """

    label: str
    title: str
    target: str
    floors: tuple[Reach, ...]
    tells: Callable[[SpecOf], Iterator[Scenario]]
    config: Mapping[str, Any]
    options: Mapping[str, Any]
    drawn: Mapping[str, tuple[Any, ...]]
    choices: bool = False
    outgrows: bool = False

    def spec(self, num_blocks: int, block_size: int, **config: Any) -> Spec:
        """A world for a story: everything fixed."""
        fields = {"num_blocks": num_blocks, "block_size": block_size, "max_num_seqs": 4, "vocab_size": VOCAB_SIZE}
        fields |= {"max_tokens_per_step": num_blocks * block_size, **self.config, **config}
        return {"target": self.target, "config": fields, "options": dict(self.options)}

    def specs(self) -> st.SearchStrategy[Spec]:
        """Small worlds for a machine."""
        return _specs(self)

    def stories(self) -> Iterator[Scenario]:
        yield from self.tells(self.spec)

    def walk(self) -> WalkShape:
        """A world for the walk: five live requests in 12 blocks of 4."""
        config = EngineConfig(num_blocks=12, block_size=4, max_tokens_per_step=8, max_num_seqs=4, vocab_size=16)
        return WalkShape(
            replace(config, **self.config),
            target=self.target,
            options=self.options,
            num_live=5,
            abort_rate=0.1,
            fault_rate=0.0,
            restart_rate=0.0,
            choices_share=0.3 if self.choices else 0.0,
            namespace_share=0.0,
            media_share=0.0,
            deadline_share=0.0,
            refused_share=0.0,
        )


@st.composite
def _specs(draw: st.DrawFn, family: Family) -> Spec:
    block_size = draw(st.sampled_from([4, 5, 8]))
    max_num_seqs = draw(st.integers(1, 5))
    budget = draw(st.sampled_from([block_size, block_size + 1, 2 * block_size + 1, 4 * block_size]))
    config = {
        "num_blocks": draw(st.integers(2, 9)),
        "block_size": block_size,
        "max_num_seqs": max_num_seqs,
        "max_tokens_per_step": max(budget, max_num_seqs),
        "vocab_size": VOCAB_SIZE,
    }
    options = {name: draw(st.sampled_from(values)) for name, values in family.drawn.items()}
    return {"target": family.target, "config": config | dict(family.config), "options": dict(family.options) | options}


# ---- stories ---------------------------------------------------------------------------------------------------------------


def _cancels(spec: SpecOf) -> Iterator[Scenario]:
    """A user leaves at each phase of a request that is alone."""
    for blocks, size in SHAPES:
        told = add("a", 3 * size, 2)
        chunked = spec(blocks, size, max_tokens_per_step=size)
        yield Scenario("abort before dispatch", chunked, (told, abort("a"), DRAIN), (Reach.ABORT_UNPLANNED,))
        yield Scenario("abort between chunks", chunked, (told, STEP, abort("a"), DRAIN), (Reach.ABORT_BETWEEN_CHUNKS,))
        yield Scenario("abort while launched", chunked, (told, PLAN, abort("a"), land(), DRAIN), (Reach.ABORT_LAUNCHED,))
        beside = (add("a", 2 * size, 2), add("b", size, 4), PLAN, abort("a"), PLAN, land(), land(), DRAIN)
        yield Scenario("abort while launched, another goes on", spec(4, size), beside, (Reach.ABORT_LAUNCHED,))
        exact = add("a", (blocks - 1) * size, size + 1)
        yield Scenario(
            "a request that fills the pool to its last slot", spec(blocks, size), (exact, *[PLAN, PLAN, land()] * size, DRAIN)
        )
        late = (told, PLAN, abort("a"), add("a", size, 2), land(), STEP, STEP, add("b", size, 1), DRAIN)
        yield Scenario("an identifier comes back while its old life is launched", chunked, late, (Reach.REUSED_IDENTIFIER,))
        yield Scenario("abort while decoding", spec(blocks, size), (told, STEP, abort("a"), add("b", 1, 1), DRAIN))


def _full_pool(size: int, blocks: int) -> tuple[Any, ...]:
    """Two requests that grow until the pool is full and one has to go: the last step is the first without a place for both."""
    half = blocks // 2
    grown = (half - 1) * size
    return add("a", size, grown + 4), add("b", size, grown + 4, leaves_at=0, variant=1), *[STEP] * (grown + 2)


def _pressed(spec: SpecOf, resumed: Reach) -> Iterator[Scenario]:
    """More is wanted than there is: somebody is put out and comes back, or is cancelled meanwhile, or everybody else is."""
    yield from _cancels(spec)
    for blocks, size in SHAPES:
        begun = _full_pool(size, blocks)
        world = spec(blocks, size)
        yield Scenario("put out and resumed", world, (*begun, DRAIN), (resumed,))
        yield Scenario("put out and cancelled", world, (*begun, abort("b"), DRAIN), (Reach.ABORT_WAITING,))
        yield Scenario("who runs is cancelled, who was put out stays", world, (*begun, abort("a"), DRAIN))
        launched = (*begun[:-1], PLAN, abort("a"), land(), DRAIN)
        yield Scenario("who runs is cancelled while launched", world, launched, (Reach.ABORT_LAUNCHED,))
        yield Scenario("somebody comes while one is put out", world, (*begun, add("c", 2 * size, 2), DRAIN), (resumed,))


def _shared(spec: SpecOf, resumed: Reach) -> Iterator[Scenario]:
    """The same beginnings again and again: hits, forgotten hits, and a pool full of what could be hit."""
    yield from _pressed(spec, resumed)
    for blocks, size in SHAPES:
        long = (blocks - 1) * size
        world = spec(blocks, size)
        again = (add("a", long, 2), DRAIN, add("b", long, 2), DRAIN, add("c", long - 1, 2, leaves_at=size), DRAIN)
        yield Scenario("the same prompt twice", world, again, (Reach.SAME_PROMPT_TWICE,))
        both = (add("a", size + 1, size), add("b", size + 1, size), STEP, STEP, abort("a"), DRAIN)
        yield Scenario("equal prompts in one batch", world, both, (Reach.SAME_PROMPT_TWICE,))
        full = (add("a", long, 1), DRAIN, add("b", long, 2, leaves_at=0, variant=1), add("c", long, 1), DRAIN)
        yield Scenario("what could be hit makes room", world, full)


def _swapped(spec: SpecOf, resumed: Reach) -> Iterator[Scenario]:
    """And a swap pool that is filled, comes back empty, and is asked for more than it holds."""
    yield from _shared(spec, resumed)
    for size in (4, 5):
        first = [add(name, size, size + 4, leaves_at=0, variant=number) for number, name in enumerate("abc")]
        then = [add(name, size, 2 * size + 3, leaves_at=0, variant=number) for number, name in enumerate("de")]
        world = spec(6, size) | {"options": {"host_blocks": 2}}
        yield Scenario("the swap pool is filled, then too small", world, (*first, DRAIN, *then, DRAIN))


def _forked(spec: SpecOf, resumed: Reach) -> Iterator[Scenario]:
    """Several choices of one prompt, at the edges of a block, with and without room for all."""
    del resumed
    for blocks, size in SHAPES:
        for length in (1, 2, size, size + 1, size + 2, 2 * size + 1):
            room = max(blocks, 4)
            reaches = (Reach.FORK_PARTIAL,) if (length - 1) % size else ()
            yield Scenario(f"three choices of {length} tokens", spec(room, size), (add("a", length, 3, n=3), DRAIN), reaches)
        yield Scenario("choices without room", spec(2, size), (add("a", size + 2, 2, n=3), DRAIN))
        gone = (add("a", size + 2, 4, n=3), PLAN, abort("a"), land(), DRAIN)
        yield Scenario("cancelled while about to fork", spec(blocks, size), gone, (Reach.ABORT_LAUNCHED,))
        two = (add("a", size + 2, 4, n=2), STEP, STEP, add("b", size + 2, 4, n=2), STEP, abort("a"), DRAIN)
        yield Scenario("cancelled behind the fork", spec(blocks, size), two)


def _outgrown(spec: SpecOf) -> Iterator[Scenario]:
    """Nobody checks at the door that a request can ever fit."""
    for blocks, size in SHAPES:
        pool = blocks * size
        told = add("a", pool + 1, 1)
        yield Scenario("a prompt above the pool", spec(blocks, size), (told, DRAIN), (Reach.OUTGREW,))
        beside = (add("b", size, 2), add("a", pool - 1, 4), DRAIN)
        yield Scenario("an output above the pool, beside another", spec(blocks, size), beside, (Reach.OUTGREW,))


# ---- transformers ----------------------------------------------------------------------------------------------------------

_SCHEDULERS = ("fifo", "prefill_first")
_DRAWN = {"scheduler": _SCHEDULERS, "sector_blocks": (1, 2), "safety_margin": (0.0, 0.15, 0.5)}
_PRESSED = (*ABORTS, Reach.ABORT_WAITING, Reach.REUSED_IDENTIFIER)


def _family(label: str, title: str, tells: Callable[..., Iterator[Scenario]], floors: tuple[Reach, ...], **more: Any) -> Family:
    fields = {"config": {}, "options": {}, "drawn": _DRAWN} | more
    return Family(label, title, "transformers", floors, tells, **fields)


TRANSFORMERS: tuple[Family, ...] = (
    _family(
        "reset",
        "put out and computed anew, without a prefix cache",
        partial(_pressed, resumed=Reach.RESUMED_ANEW),
        (*_PRESSED, Reach.RESUMED_ANEW),
        config={"prefix_cache": False},
    ),
    _family(
        "sharing",
        "prefix cache",
        partial(_shared, resumed=Reach.RESUMED_ANEW),
        (*_PRESSED, Reach.RESUMED_ANEW, Reach.SAME_PROMPT_TWICE),
    ),
    _family(
        "swap",
        "put out into the swap pool and back",
        partial(_swapped, resumed=Reach.RESUMED_SWAPPED),
        (*_PRESSED, Reach.RESUMED_SWAPPED, Reach.SAME_PROMPT_TWICE),
        options={"host_blocks": 6},
        drawn=_DRAWN | {"host_blocks": (2, 4, 12)},
    ),
    _family(
        "choices",
        "several choices",
        partial(_forked, resumed=Reach.RESUMED_SWAPPED),
        (Reach.FORK_PARTIAL, Reach.ABORT_LAUNCHED),
        options={"host_blocks": 6},
        drawn=_DRAWN | {"host_blocks": (0, 4, 12)},
        choices=True,
    ),
    _family(
        "overlap",
        "the next batch before the last result",
        partial(_shared, resumed=Reach.RESUMED_SWAPPED),
        (*_PRESSED, Reach.RESUMED_SWAPPED, Reach.SAME_PROMPT_TWICE, Reach.DEPTH_ONE),
        config={"max_plans_in_flight": 2},  # read by the walk
        options={"host_blocks": 6, "overlap": True},
        drawn=_DRAWN | {"host_blocks": (0, 4, 12)},
    ),
    _family("outgrown", "requests that outgrow the cache", _outgrown, (Reach.OUTGREW,), outgrows=True),
)
FAMILIES: Mapping[str, tuple[Family, ...]] = {"transformers": TRANSFORMERS}
