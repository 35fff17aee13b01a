"""The suite `streamed-text`: what readers see of random texts, cut into tokens at random, with random stop strings (SC-12).

Owns what is drawn, how much of it in which profile, and what becomes of a failure. The tokens go through the text front over
the engine, alone and several at once, forked, overlapped and aborted, under names that come back for other texts; each choice
is judged by `properties.streamed_text`, from its tokens alone.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from differential.text_world import (
    FIRST_BYTE,
    MARK,
    SPECIAL,
    TARGET,
    Spec,
    TextWorld,
    bytes_of_tokens,
    first_script_of,
    script_of,
    text_world,
)
from engine_under_test.errors import BadInput
from engine_under_test.types import Adapter, FinishReason, Request, SamplingParams
from models.shrink import shrink_world
from properties.op import Op, OpKind
from properties.streamed_text import TEXT_SENTENCES, ToldText, certain_text, shown_after
from properties.suite import CheckResult, Failure, Profile, SuiteContext
from properties.verdict import Violation, verdict_of

SUITE_ID = "streamed-text"
_CASES = {Profile.QUICK: 400, Profile.PR: 4_000, Profile.NIGHTLY: 60_000}
_WORDS = (
    b"a",
    b"b",
    b"ab",
    b"aab",
    b"#",
    b"##",
    b"\n\n",
    b"\r\n",
    b"\r",
    b" ",
    *(word.encode() for word in ("é", "漢", "字", "😀", "👩‍🚀", "\ufffd")),
)
_BROKEN = (b"\xff", b"\xf0\x9f", b"\xe6", b"\x80", b"\xed\xa0\x80", b"\xc3")  # no UTF-8: some become so with what follows
_BAD = ("a", "ab", " b", "  ##", "é", "漢字", "no such word")
_AGAIN = 0.45  # how often a request takes a name that was there before
_STEP = Op(OpKind.STEP)
# What a run of a profile must reach, at least so often for each 100 cases.
FLOORS: Mapping[str, int] = {
    "ended by a stop string": 15,
    "ended by a stop token": 15,
    "ended by length": 15,
    "ended by an abort": 5,
    "ended by an error": 5,
    "text held back at an error": 1,
    "a line end across tokens": 5,
    "four stop strings or more": 20,
    "a stop string across tokens": 10,
    "a character across tokens": 30,
    "told of a token by its name": 5,
    "asked in a conversation": 20,
    "a special token spelled in a conversation": 10,
    "a sibling went on": 5,
    "forked": 20,
    "overlapped": 20,
    "random tokens": 5,
    "a name came back": 15,
    "came back forked": 5,
    "came back right behind an abort": 5,
    "came back with results in flight": 2,
    "came back right behind a stop": 2,
    "a name in use refused": 4,
    "an abort of what is not live": 5,
    "log-probabilities asked for": 20,
    "several tokens at once": 15,
    "a stop string inside of several tokens": 2,
    "a stop token inside of several tokens": 1,
    "bad words": 15,
    "an adapter": 15,
}
_ADAPTERS = (Adapter("one", 1), Adapter("two", 2))


@dataclass(frozen=True, slots=True)
class Case:
    """A world and what is done in it; the run ends with a drain."""

    spec: Spec
    ops: tuple[Op, ...]


def cases(seed: int) -> Iterator[Case]:
    """For ever."""
    number = 0
    while True:
        yield draw_case(random.Random(f"{SUITE_ID} {seed} {number}"))
        number += 1


def draw_case(chance: random.Random) -> Case:
    """One to four requests of one to three choices; some take a name again, live or ended, often just behind an abort."""
    pieces: dict[bytes, int] = {}
    texts: dict[str, Any] = {}
    ops: list[Op] = []
    asked: Counter[str] = Counter()
    for fresh in "abcd"[: chance.randint(1, 4)]:
        name = chance.choice([*asked]) if asked and chance.random() < _AGAIN else fresh
        asked[name] += 1
        if asked[name] > 1:
            ops += _before_a_return(chance, name)
        choices = chance.choice((1, 1, 2, 3))
        said = [_cut(chance, _bytes(chance), pieces) for _ in range(choices)]
        stands_for = bytes_of_tokens([piece.decode("latin-1") for piece in pieces])
        drawn = [b"".join(stands_for[token] for token in one) for one in said]
        is_chat = {"is_chat": True} if chance.random() < 0.3 else {}
        bad = {"bad": [chance.choice(_BAD) for _ in range(chance.randint(1, 3))]} if chance.random() < 0.2 else {}
        texts[script_of(name, asked[name])] = {"said": said, "stops": _stops(chance, drawn)} | is_chat | bad
        ops.append(Op(OpKind.ADD, request=_request(chance, name, said)))
        ops += [_STEP] * chance.randint(0, 3)
    for name in asked:
        if chance.random() < 0.2:
            ops += [*[_STEP] * chance.randint(0, 8), Op(OpKind.ABORT, request_id=name)]
    if chance.random() < 0.25:
        ops.insert(chance.randint(0, len(ops)), Op(OpKind.SICK_ROW, k=chance.randrange(6)))
    config = {
        "num_blocks": chance.choice((24, 96)),
        "block_size": chance.choice((2, 4)),
        "max_tokens_per_step": 24,
        "max_num_seqs": chance.choice((2, 12)),
        "max_plans_in_flight": chance.randint(1, 3),
        "adapters": [[each.name, each.version] for each in _ADAPTERS],
    }
    spec: dict[str, Any] = {"target": TARGET, "pieces": [piece.decode("latin-1") for piece in pieces], "texts": texts}
    spec |= {"config": config} | ({"runner": "fingerprint"} if chance.random() < 0.15 else {})
    spec |= {"drafts": chance.randint(1, 5)} if chance.random() < 0.4 else {}
    return Case(spec, tuple(ops))


def _before_a_return(chance: random.Random, name: str) -> list[Op]:
    """Steps and aborts after which the name is asked for again: in the middle of its life, at its end or right behind it."""
    steps = [_STEP] * chance.choice((0, 2, 3, 4, 5, 6, 8, 13))
    aborts = [Op(OpKind.ABORT, request_id=name)] * chance.choice((0, 0, 1, 1, 2))
    return [*steps, *aborts, *[_STEP] * (chance.random() < 0.2)]


def _bytes(chance: random.Random) -> bytes:
    words = [chance.choice(_BROKEN if chance.random() < 0.15 else _WORDS) for _ in range(chance.randint(1, 9))]
    return b"".join(words)


def _cut(chance: random.Random, data: bytes, pieces: dict[bytes, int]) -> list[int]:
    """Tokens of `data`, cut anywhere, within characters too; now and then a token that stands for its name in between."""
    longest = chance.choice((1, 2, 4, 9))
    tokens, place = [], 0
    while place < len(data):
        piece = data[place : place + chance.randint(1, longest)]
        place += len(piece)
        known = FIRST_BYTE + piece[0] if len(piece) == 1 else FIRST_BYTE + 0x100 + pieces.setdefault(piece, len(pieces))
        tokens += [known, chance.randrange(MARK, FIRST_BYTE)] if chance.random() < 0.03 else [known]
    return tokens


def _stops(chance: random.Random, drawn: Sequence[bytes]) -> list[str]:
    """Parts of the texts, some with a character too many: those that come, and those that nearly come."""
    found = []
    for _ in range(chance.choice((0, 1, 1, 2, 3, 4, 8))):
        text = chance.choice(drawn).decode("utf-8", "replace")
        begin = chance.randrange(len(text))
        part = text[begin : begin + chance.randint(1, 4)]
        found.append(part + chance.choice(("", "", "", "b", "#", "é")))
    return found


def _request(chance: random.Random, name: str, said: Sequence[Sequence[int]]) -> Request:
    """A limit about where the texts end; sometimes one of the tokens ends a text."""
    length = max(map(len, said))
    most = max(1, length + chance.choice((-2, -1, 0, 1, 2)))
    stop_ids = (chance.choice(chance.choice(said)),) if chance.random() < 0.2 else ()
    sampling = SamplingParams(
        max_tokens=most,
        n=len(said),
        min_tokens=chance.choice((0, 0, min(2, most))),
        stop_token_ids=stop_ids,
        seed=length,
        logprobs=0 if chance.random() < 0.3 else None,
    )
    return Request(name, _prompt(chance), sampling, adapter=chance.choice((None, None, *_ADAPTERS)))


def _prompt(chance: random.Random) -> tuple[int, ...]:
    """Whole characters, byte by byte, and the names of marked tokens."""
    tokens: list[int] = []
    for _ in range(chance.randint(1, 5)):
        if chance.random() < 0.1:
            tokens.append(chance.randrange(FIRST_BYTE))
        else:
            tokens += [FIRST_BYTE + byte for byte in chance.choice((b"?", *_WORDS))]
    return tuple(tokens)


def run_case(spec: Spec, ops: Sequence[Op]) -> tuple[ToldText, ...]:
    """Every choice, once nothing is left. Raises BadInput where the spec is none."""
    return run_world(spec, ops).told()


def run_world(spec: Spec, ops: Sequence[Op]) -> TextWorld:
    """The world in which these things were done, and then nothing is left to do."""
    world = text_world(spec)
    for op in ops:
        world.apply(op)
    world.drain()
    return world


def first_broken(told: Sequence[ToldText]) -> Violation | None:
    """The first choice of which a sentence does not hold."""
    judged = (sentence.check(each) for each in told for sentence in TEXT_SENTENCES)
    return next((found for found in judged if found is not None), None)


def judge_case(spec: Spec, ops: Sequence[Op]) -> Violation | None:
    """What a case ends with; nothing where it can not be run at all."""
    try:
        return first_broken(run_case(spec, ops))
    except BadInput:
        return None


def check_streamed_text(context: SuiteContext) -> CheckResult:
    """The suite: case after case, up to the first failure, which is shrunk."""
    total = _CASES[context.profile]
    reached: Counter[str] = Counter(dict.fromkeys(FLOORS, 0))
    examples = ops = judged = 0
    failure: Failure | None = None
    for case in cases(context.seed):
        if examples == total or failure is not None:
            break
        world = run_world(case.spec, case.ops)
        told = world.told()
        reached.update(world.met)
        examples, ops, judged = examples + 1, ops + len(case.ops), judged + len(told)
        context.progress(examples, total)
        if (violation := first_broken(told)) is not None:
            failure = failure_of(case, violation, f"{SUITE_ID}#{context.seed:#x}", context.shrink_s)
        else:
            _count(case, told, reached)
    missed = [
        f"{name} at least {floor * total // 100} times, found {reached[name]}"
        for name, floor in FLOORS.items()
        if failure is None and reached[name] < floor * total // 100
    ]
    return CheckResult(
        SUITE_ID,
        verdict_of(failure, missed),
        examples=examples,
        ops=ops,
        reached=dict(reached),
        missed=tuple(missed),
        invariants={"SC-12": judged},
        failures=(failure,) if failure else (),
        note=f"{judged:,} streamed choices",
    )


def _count(case: Case, told: Sequence[ToldText], reached: Counter[str]) -> None:
    _count_prompts(case, reached)
    spec = case.spec
    reached["overlapped"] += spec["config"].get("max_plans_in_flight", 1) > 1
    reached["random tokens"] += spec.get("runner") == "fingerprint"
    reached["forked"] += any(each.sampling.n > 1 for each in told)
    for each in told:
        number, reason = (each.news[-1].num_tokens, each.news[-1].reason) if each.news else (0, None)
        certain = [certain_text(b"".join(each.pieces[:count])) for count in range(number + 1)]
        by_token = reason is FinishReason.STOP and number > 0 and each.token_ids[number - 1] in each.stop_token_ids
        by_string = reason is FinishReason.STOP and not by_token
        reached["ended by a stop token"] += by_token
        reached["ended by a stop string"] += by_string
        reached["ended by length"] += reason is FinishReason.LENGTH
        reached["ended by an abort"] += reason is FinishReason.ABORT
        reached["ended by an error"] += reason is FinishReason.ERROR
        reached["text held back at an error"] += reason is FinishReason.ERROR and shown_after(each, number) != _text(
            b"".join(each.pieces[:number])
        )
        reached["four stop strings or more"] += len(each.stops) >= 4
        _count_at_once(each, number, by_token, by_string, reached)
        reached["a line end across tokens"] += any(
            one.endswith(b"\r") and other.startswith(b"\n") for one, other in pairwise(each.pieces[:number])
        )
        reached["a stop string across tokens"] += by_string and not any(
            stop in _text(each.pieces[number - 1]) for stop in each.stops
        )
        reached["told of a token by its name"] += any(token in range(MARK, FIRST_BYTE) for token in each.token_ids[:number])
        reached["a sibling went on"] += by_string and any(
            other.news[-1].num_tokens > number
            for other in told
            if other.news and (other.request_id, other.life) == (each.request_id, each.life)
        )
        reached["a character across tokens"] += any(one == other for one, other in pairwise(certain))


def _count_at_once(told: ToldText, number: int, by_token: bool, by_string: bool, reached: Counter[str]) -> None:
    side = told.engine
    assert side is not None  # this world looks behind every choice
    reached["log-probabilities asked for"] += told.sampling.logprobs is not None and number > 0
    reached["bad words"] += bool(side.written.bad_words)
    reached["an adapter"] += side.written.adapter is not None
    reached["several tokens at once"] += any(other - one > 1 for one, other in pairwise((0, *side.told_after)))
    reached["a stop string inside of several tokens"] += by_string and side.told_with(number) > number
    before = max((count for count in side.told_after if count < number), default=0)
    reached["a stop token inside of several tokens"] += by_token and number - before > 1


def _count_prompts(case: Case, reached: Counter[str]) -> None:
    asked: Counter[str] = Counter()
    for request in (op.request for op in case.ops if op.request is not None):
        asked[request.request_id] += 1
        is_chat = bool(case.spec["texts"][script_of(request.request_id, asked[request.request_id])].get("is_chat"))
        reached["asked in a conversation"] += is_chat
        reached["a special token spelled in a conversation"] += is_chat and min(request.prompt) < len(SPECIAL)


def _text(piece: bytes) -> str:
    return piece.decode("utf-8", "replace")


def failure_of(
    case: Case, violation: Violation, seed: str, shrink_s: float, now: Callable[[], float] = time.monotonic
) -> Failure:
    """The violation as a counterexample: operations, payloads and pool as `models.shrink` does it, then the texts."""
    ends_at = now() + shrink_s
    spec, ops = case.spec, case.ops
    is_better = True
    while is_better and now() < ends_at:
        shrunk = shrink_world(spec, ops, violation, run=judge_case, max_seconds=ends_at - now(), now=now)
        before = spec, ops
        spec, ops, violation = shrunk.spec, shrunk.ops, shrunk.violation
        for smaller in _smaller_texts(spec):
            found = judge_case(smaller, ops) if now() < ends_at else None
            if found is not None and found.invariant == violation.invariant:
                spec, violation = smaller, found
                break
        is_better = (spec, ops) != before
    tidy = _without_unused(spec)
    if judge_case(tidy, ops) is not None:
        spec = tidy
    return Failure(violation, seed, spec, ops, len(case.ops))


def _without_unused(spec: Spec) -> Spec:
    """The same texts with a vocabulary of no more than they need."""
    first = FIRST_BYTE + 0x100
    texts: Mapping[str, Any] = spec["texts"]
    used = sorted({token for text in texts.values() for said in text["said"] for token in said if token >= first})
    new = {token: first + place for place, token in enumerate(used)}
    renamed = {
        name: {**text, "said": [[new.get(token, token) for token in said] for said in text["said"]]}
        for name, text in texts.items()
    }
    return {**spec, "pieces": [spec["pieces"][token - first] for token in used], "texts": renamed}


def _smaller_texts(spec: Spec) -> Iterator[Spec]:
    """One text, stop string or run of tokens less. What a later life says may do as well in the first."""
    texts: Mapping[str, Any] = spec["texts"]
    for name, text in texts.items():
        rest = {other: one for other, one in texts.items() if other != name}
        yield {**spec, "texts": rest}
        if (first := first_script_of(name)) != name:
            yield {**spec, "texts": {**rest, first: text}}
        for place in range(len(text["stops"])):
            yield {**spec, "texts": {**texts, name: {**text, "stops": text["stops"][:place] + text["stops"][place + 1 :]}}}
        for choice, said in enumerate(text["said"]):
            for shorter in _shorter(said):
                spoken = [*text["said"][:choice], shorter, *text["said"][choice + 1 :]]
                yield {**spec, "texts": {**texts, name: {**text, "said": spoken}}}


def _shorter(said: list[int]) -> Iterator[list[int]]:
    size = len(said)
    while size:
        for begin in range(0, len(said), size):
            yield said[:begin] + said[begin + size :]
        size //= 2
