"""The suite `strange-requests`: in each field of a request what does not belong there, and requests that are well written but
can not go on, beside guests that must not notice; and requests at the edges of what an engine has room for.

Owns the strange values, what each field may hold by its own annotation (whatever the engine's rules say), and what must follow:
what is no value of its field is refused with a sentence and nothing of it is kept; what is let in comes to its end; guests say
what they say alone (SE-2), and find as much of their prefix as before (KV-15); what fits is served. Never: whether some other
value in range is accepted.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, fields, replace
from enum import Enum
from itertools import product
from random import Random
from types import UnionType
from typing import Any, Final, Union, get_args, get_origin, get_type_hints

from engine_under_test.config import EngineConfig
from engine_under_test.engine import Engine
from engine_under_test.execution.fingerprint import FingerprintRunner
from engine_under_test.types import (
    Adapter,
    FinishReason,
    GrammarKind,
    GrammarSpec,
    History,
    Media,
    Output,
    Request,
    SamplingParams,
)
from models.compiled import IS_INSTALLED, compiled
from properties.invariants.predicate import violation
from properties.small_grammars import GRAMMARS, STOPS, VOCAB_SIZE
from properties.suite import CheckResult, Failure, Profile, Suite, SuiteContext
from properties.sums import Sums
from properties.verdict import Violation

SUITE_ID: Final = "strange-requests"
_STUCK: Final = {Profile.QUICK: 40, Profile.PR: 160, Profile.NIGHTLY: 4000}
_FLOORS: Final = {
    "sizes let in": 20,
    "sizes refused": 20,
    "refused": 500,
    "let in": 60,
    "stuck, alone": 3,
    "stuck, beside others": 20,
}
_BLOCKS, _BLOCK = 64, 4
_PROMPT: Final = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 3)
_TURNS = 200
_ADAPTER = Adapter("x", 1)


class _Nothing:
    """Of no type that anybody knows."""

    def __repr__(self) -> str:
        return "something else"


_VALUES: Final[tuple[Any, ...]] = (
    *(None, True, -1, 2**70, 1.5, math.nan, math.inf, -math.inf, "", "x", "\ud800", b"x", _Nothing(), {}, [], [1]),
    *((), (None,), (True,), (-1,), (1.5,), ("x",), ("\ud800",), ((),), ((1,),), ((1, math.nan),), ((1, "x"),), (_Nothing(),)),
)
_GOOD: Final = Request(
    "strange",
    _PROMPT,
    SamplingParams(max_tokens=3, stop_token_ids=STOPS, temperature=1.0, seed=7),
    adapter=_ADAPTER,
    media=(Media("m", 5, 2),),
)
_SPEC: Final = GrammarSpec(GrammarKind.CHOICE, ("yes",))
_PARTS: Final[tuple[tuple[str, Any, Callable[[Any], Request]], ...]] = (
    ("", _GOOD, lambda part: part),
    ("sampling.", _GOOD.sampling, lambda part: replace(_GOOD, sampling=part)),
    ("adapter.", _ADAPTER, lambda part: replace(_GOOD, adapter=part)),
    ("media.", _GOOD.media[0], lambda part: replace(_GOOD, media=(part,))),
    ("grammar.", _SPEC, lambda part: replace(_GOOD, sampling=replace(_GOOD.sampling, grammar=part))),
)


def fits(value: object, hint: Any) -> bool:
    """Whether a value is of the type that an annotation says. A bool is no number, and half of a surrogate pair is no text."""
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return any(fits(value, each) for each in args)
    if origin is tuple:
        if type(value) is not tuple:
            return False
        kinds = (args[0],) * len(value) if args[-1] is Ellipsis else args
        return len(kinds) == len(value) and all(map(fits, value, kinds))
    if hint is str:
        return type(value) is str and value.encode(errors="replace").decode() == value
    if isinstance(hint, type) and issubclass(hint, Enum):
        return isinstance(value, hint)
    return type(value) in ((int, float) if hint is float else (hint,))  # None is of NoneType


@dataclass(frozen=True, slots=True)
class Strange:
    """A request that is good but for one field."""

    words: str
    request: Request
    is_one: bool  # each field holds what its annotation says


def every_strange() -> Iterator[Strange]:
    """Each value in each field of each part of a request."""
    for prefix, part, put in _PARTS:
        hints = get_type_hints(type(part))
        for each, value in product(fields(part), _VALUES):
            yield Strange(
                f"{prefix}{each.name} = {value!r}", put(replace(part, **{each.name: value})), fits(value, hints[each.name])
            )


@dataclass(frozen=True, slots=True)
class Stuck:
    """A well-written request that can not go on: why, from which token on, in which place of its batch."""

    kind: str
    index: int
    place: int
    depth: int


_WITH_GRAMMARS: Final = ("no token is left",) if IS_INSTALLED else ()
_KINDS: Final = ("raises", "leaves no number", "leaves infinity", "is not there", *_WITH_GRAMMARS)


def draw_stuck(seed: int) -> Stuck:
    chance = Random(f"stuck/{seed}")
    return Stuck(chance.choice(_KINDS), chance.randrange(3), chance.randrange(4), chance.randrange(3))


def _processor(kind: str, index: int) -> Callable[[Any, History], None]:
    def spoil(row: Any, history: History) -> None:
        if len(history.output) < index:
            return
        if kind == "raises":
            raise ValueError("this processor is broken")
        row[3] = math.nan if kind == "leaves no number" else math.inf

    return spoil


def _engine(depth: int = 1, stuck: Stuck | None = None) -> Engine:
    grammars = compiled(VOCAB_SIZE) if IS_INSTALLED else None
    processors = {} if stuck is None or stuck.kind == "is not there" else {"broken": _processor(stuck.kind, stuck.index)}
    runner = FingerprintRunner(_BLOCKS, _BLOCK, VOCAB_SIZE, processors=processors, grammars=grammars)
    config = EngineConfig(
        num_blocks=_BLOCKS, block_size=_BLOCK, vocab_size=VOCAB_SIZE, max_tokens_per_step=48, max_num_seqs=8,
        max_plans_in_flight=1 + depth, adapters=(_ADAPTER,), logits_processors=("broken",),
    )  # fmt: skip
    return Engine(config, runner, grammars=grammars)


_GUESTS: Final = tuple(
    Request(f"guest {number}", (*_PROMPT, number), SamplingParams(max_tokens=4, temperature=1.0, seed=number))
    for number in range(3)
)
_PROBE: Final = Request("probe", (*_PROMPT, 15))


@dataclass(slots=True)
class Table:
    """An engine that serves guests, to which strange requests come. ``violation``: the first thing wrong."""

    engine: Engine
    reached: Counter[str] = field(default_factory=Counter)
    evaluations: Counter[str] = field(default_factory=Counter)
    violation: Violation | None = None
    _alone: dict[str, tuple[int, ...]] = field(default_factory=dict)
    _found: int = 0

    def open(self) -> None:
        """What guests say, and find, before anybody strange has come."""
        self._alone = {name: tokens for name, (tokens, _) in self._serve(_GUESTS).items()}
        self._found = len(self.engine.lookup(_PROBE))

    def meet(self, strange: Request, words: str, place: int, *, is_one: bool = True) -> FinishReason | None:
        """It comes among the guests, in that place; how it ended, None at the door."""
        engine, before = self.engine, self.engine.snapshot()
        in_turn = (*_GUESTS[:place], strange, *_GUESTS[place:])
        try:
            refusal = engine.submit(strange)
        except Exception as error:
            self._wrong("SC-7", f"a request with {words}", f"{type(error).__name__} at the door: {error}", "an answer")
            return None
        self.evaluations["SC-11"] += 1
        if not refusal.is_accepted:
            self.reached["refused"] += 1
            if not refusal.message:
                self._wrong("SC-11", f"a request with {words}", "refused without a word", "a sentence")
            if engine.snapshot() != before or engine.has_work:
                self._wrong("SC-11", f"a request with {words}", "refused, and something of it kept", "nothing kept")
            return None
        if not is_one:
            self._wrong("SC-4", f"a request with {words}", "accepted", "refused: its field is of another type")
            return None
        engine.abort(strange.request_id)  # it was to be known that it is let in; now it comes in its place
        engine.take_outputs()
        self.reached["let in"] += 1
        ends = self._serve(in_turn)
        self._judge(ends, words)
        return ends.get(strange.request_id, ((), None))[1]

    def _serve(self, requests: Iterable[Request]) -> dict[str, tuple[tuple[int, ...], FinishReason | None]]:
        """What each said (its choice 0), and how it ended."""
        engine, news = self.engine, list[Output]()
        try:
            for request in requests:
                engine.submit(request)
            for _ in range(_TURNS):
                if not engine.has_work:
                    break
                engine.step()
                news += engine.take_outputs()
        except Exception as error:
            self._wrong("SC-7", "an engine that serves", f"{type(error).__name__}: {error}", "nothing raised")
        said: dict[str, tuple[tuple[int, ...], FinishReason | None]] = {}
        for each in news:
            tokens, end = said.get(each.request_id, ((), None))
            said[each.request_id] = (tokens + each.token_ids * (each.choice == 0), each.finish_reason or end)
        return said

    def _judge(self, said: dict[str, tuple[tuple[int, ...], FinishReason | None]], words: str) -> None:
        self.evaluations.update(("SC-7", "KV-15", *("SE-2",) * len(_GUESTS)))
        if self.engine.has_work:
            self._wrong("SC-7", f"beside one with {words}", f"work left after {_TURNS} steps", "an end of each")
            return
        for guest in _GUESTS:
            tokens, end = said.get(guest.request_id, ((), None))
            if tokens != self._alone[guest.request_id] or end is FinishReason.ERROR:
                found, expected = f"{tokens}, ended by {end}", f"{self._alone[guest.request_id]}, as alone"
                self._wrong("SE-2", f"{guest.request_id} beside one with {words}", found, expected)
        if (found_now := len(self.engine.lookup(_PROBE))) < self._found:
            found, expected = f"{found_now} blocks are found", f"{self._found}, as before it came"
            self._wrong("KV-15", f"the prefix of the guests, behind one with {words}", found, expected)

    def _wrong(self, identifier: str, subject: str, found: str, expected: str) -> None:
        self.violation = self.violation or violation(identifier, subject, found, expected)


def run_stuck(stuck: Stuck) -> Table:
    """One that can not go on, in its place among the guests, at its depth."""
    table = Table(_engine(stuck.depth, stuck))
    table.open()
    sampling = SamplingParams(max_tokens=6, processors=("broken",))
    if stuck.kind == "no token is left":
        sampling = SamplingParams(max_tokens=6, grammar=GRAMMARS[0], stop_token_ids=STOPS, allowed_token_ids=(4, 5))
    words = f"what {stuck.kind}" if "token" in stuck.kind else f"a processor that {stuck.kind}"
    strange = Request("strange", (*_PROMPT, 4), sampling)
    end = table.meet(strange, words, stuck.place)
    if table.violation is None and end is not FinishReason.ERROR:
        table.violation = violation("SC-12", f"a request with {words}", f"ended by {end}", "an error that says so")
    table.reached["stuck, beside others" if stuck.place else "stuck, alone"] += end is FinishReason.ERROR
    return table


_SEATS, _SLOTS, _STEP = 3, 32, 16
_EDGES: Final = tuple(product((False, True), (1, _SEATS, _SEATS + 1), (1, _STEP, _STEP + 1, _SLOTS, _SLOTS + 1), (1, 2, _STEP)))


def run_edge(chunking: bool, n: int, prompt_len: int, max_tokens: int) -> tuple[bool, Violation | None]:
    """Whether a request of that size is let in by a small engine, and what is wrong: what fits is served, all else refused."""
    config = EngineConfig(
        num_blocks=_SLOTS // _BLOCK, block_size=_BLOCK, vocab_size=VOCAB_SIZE, max_tokens_per_step=_STEP, max_num_seqs=_SEATS,
        max_plans_in_flight=2, chunking=chunking,
    )  # fmt: skip
    engine = Engine(config, FingerprintRunner(config.num_blocks, _BLOCK, VOCAB_SIZE))
    prompt = tuple(number % VOCAB_SIZE for number in range(prompt_len))
    is_in = engine.submit(Request("edge", prompt, SamplingParams(max_tokens=max_tokens, n=n, temperature=1.0))).is_accepted
    slots = prompt_len + max_tokens - 1
    fits_in = n <= _SEATS and slots <= _SLOTS and (chunking or slots <= _STEP)
    ends = []
    for _ in range(_TURNS):
        if not engine.has_work:
            break
        engine.step()
        ends += [each.finish_reason for each in engine.take_outputs() if each.finish_reason is not None]
    found = f"{'let in' if is_in else 'refused'}, {len(ends)} ends{', and work left' * engine.has_work}"
    expected = f"let in, {n} ends" if fits_in else "refused, 0 ends"
    words = f"{n} choices of {prompt_len} + {max_tokens} tokens{'' if chunking else ' without chunks'}"
    return is_in, None if found == expected else violation("SC-7", words, found, expected)


def check_strange(context: SuiteContext) -> CheckResult:
    """The suite, up to the first violation."""
    sums, failure = Sums(), None
    number, total = 0, _STUCK[context.profile]
    again = {"suite": SUITE_ID, "profile": context.profile.value, "seed": context.seed}
    table = Table(_engine())
    table.open()
    for strange in every_strange():
        sums.examples += 1
        table.meet(strange.request, strange.words, sums.examples % 4, is_one=strange.is_one)
        if table.violation is not None:
            failure = Failure(table.violation, strange.words, again)
            break
    for edge in _EDGES if failure is None else ():
        sums.examples += 1
        is_in, wrong = run_edge(*edge)
        sums.reached["sizes let in" if is_in else "sizes refused"] += 1
        sums.evaluations["SC-7"] += 1
        if wrong is not None and failure is None:
            failure = Failure(wrong, wrong.subject, again)
    tables = [table]
    while failure is None and number < total:
        context.progress(number, total)
        sums.examples += 1
        stuck = draw_stuck(context.seed + number)
        tables.append(run_stuck(stuck))
        if (found := tables[-1].violation) is not None:
            failure = Failure(found, f"{SUITE_ID}#{context.seed + number:#x}", again)
        number += 1
    for each in tables:
        sums.reached.update(each.reached)
        sums.evaluations.update(each.evaluations)
    sums.ops = sums.examples
    sums.require(_FLOORS)
    note = f"{sums.reached['refused']} refused with a sentence, {sums.reached['let in']} let in among guests, {number} stuck"
    return sums.result(SUITE_ID, [failure], note)


SUITE = Suite(SUITE_ID, "strange requests among guests", check_strange, share_s=2.0)
