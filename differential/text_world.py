"""A text front over an engine whose tokens are known: built from a spec, run through operations, each choice gathered.

Owns the meaning of a spec: {"target": "text", "pieces": [...], "runner": "scripted" | "fingerprint", "texts": {name: {"said":
[[token, ...] of each choice], "stops": [...]}}, "config": {...}}. Tokens 0 and 1 are special (`END` ends a text), the 256
after them single bytes, the rest ``pieces``, whose characters stand for bytes (Latin-1). Never judges
(`properties.streamed_text`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers

from engine_under_test.engine import Engine
from engine_under_test.errors import BadInput
from engine_under_test.execution.fingerprint import FingerprintRunner
from engine_under_test.execution.runner import Launch, Runner
from engine_under_test.model.tokenizer import Special, Tokenizer
from engine_under_test.text import TextEngine
from engine_under_test.types import Output, Plan, Request, Reservation, SamplingParams, StepResult
from models.build import config_from
from properties.op import Op, OpKind
from properties.streamed_text import News, ToldText

TARGET = "text"
SPECIAL = ("<end>", "<mark>")
END = 0
FIRST_BYTE = len(SPECIAL)
_SPARE_STEPS = 60
Key = tuple[str, int, int]  # request, incarnation, choice
Spec = Mapping[str, Any]


def alphabet() -> list[str]:
    """The character that spells each byte in a byte-level vocabulary: itself if it is printed, else the next from U+0100 on."""
    printed = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in printed else next(others)) for byte in range(0x100)]


def bytes_of_tokens(pieces: Sequence[str]) -> tuple[bytes, ...]:
    """What each token of a vocabulary stands for."""
    return (*(one.encode() for one in SPECIAL), *(bytes([byte]) for byte in range(0x100)), *(_bytes(one) for one in pieces))


def tokenizer_of(pieces: Sequence[str]) -> Tokenizer:
    """The engine's own tokenizer over that vocabulary."""
    spelled = alphabet()
    names = [*SPECIAL, *spelled, *("".join(spelled[byte] for byte in _bytes(piece)) for piece in pieces)]
    backend = tokenizers.Tokenizer(models.BPE(vocab={name: token for token, name in enumerate(names)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(name, normalized=False, special=True) for name in SPECIAL])
    return Tokenizer(backend, Special(stop=(END,)))


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
    """Each choice says its own tokens, whatever its prompt; behind them `END` for ever."""

    def __init__(self, said: Mapping[str, Sequence[Sequence[int]]]) -> None:
        self._said = said

    def launch(self, plan: Plan, reservation: Reservation) -> Launch:
        """See `runner.Runner`."""
        del reservation
        tokens = tuple((self._token(plan, row),) if samples else () for row, samples in enumerate(plan.samples))
        return KnownLaunch(StepResult(plan.plan_id, plan.generation, tuple(plan.row_ids()), tokens))

    def _token(self, plan: Plan, row: int) -> int:
        request, choice = plan.requests[row], plan.choices[row]
        index = plan.starts[row] + plan.num_tokens[row] - len(request.prompt)
        said = self._said.get(request.request_id, ())
        return said[choice][index] if choice < len(said) and index < len(said[choice]) else END


class TappedEngine(Engine):
    """Remembers the outputs that it hands out."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.told: list[Output] = []

    def take_outputs(self) -> tuple[Output, ...]:
        """See `Engine.take_outputs`."""
        outputs = super().take_outputs()
        self.told += outputs
        return outputs


@dataclass(slots=True)
class TextWorld:
    """The front, its engine, and what was asked and told so far."""

    front: TextEngine
    engine: TappedEngine
    tokenizer: Tokenizer
    pieces: tuple[bytes, ...]
    stops: Mapping[str, tuple[str, ...]]
    asked: dict[Key, SamplingParams] = field(default_factory=dict)
    news: dict[Key, list[News]] = field(default_factory=dict)
    aborted: set[tuple[str, int]] = field(default_factory=set)
    noops: int = 0

    def apply(self, op: Op) -> bool:
        """False for what does not apply here."""
        if op.kind is OpKind.ADD and op.request is not None:
            return self._add(op.request)
        if op.kind is OpKind.ABORT:
            lives = [life for name, life, _choice in self.asked if name == op.request_id]
            if not lives or not self.front.abort(op.request_id):
                return False
            self.aborted.add((op.request_id, max(lives)))
            return True
        if op.kind is OpKind.STEP and (self.front.has_work or self.engine.has_work):
            self.step()
            return True
        return False

    def step(self) -> None:
        """One iteration, and what it lets the readers see. News belong to the last life of their request."""
        for delta in self.front.step():
            life = max(life for name, life, choice in self.asked if (name, choice) == (delta.request_id, delta.choice))
            news = News(delta.text, delta.num_tokens, delta.finish_reason)
            self.news.setdefault((delta.request_id, life, delta.choice), []).append(news)

    def drain(self) -> None:
        """Steps until nothing is left, but no more than a healthy engine needs."""
        most = _SPARE_STEPS + 4 * sum(sampling.max_tokens for sampling in self.asked.values())
        while (self.front.has_work or self.engine.has_work) and most:
            self.step()
            most -= 1

    def told(self) -> tuple[ToldText, ...]:
        """Every choice of every accepted request."""
        tokens: dict[Key, list[int]] = {}
        for output in self.engine.told:
            tokens.setdefault((output.request_id, output.incarnation, output.choice), []).extend(output.token_ids)
        return tuple(self._told(key, sampling, tokens.get(key, [])) for key, sampling in self.asked.items())

    def _told(self, key: Key, sampling: SamplingParams, tokens: list[int]) -> ToldText:
        name, life, choice = key
        return ToldText(
            f"request {name}, choice {choice}",
            tuple(tokens),
            tuple(self.pieces[token] for token in tokens),
            sampling,
            frozenset((*sampling.stop_token_ids, END)),
            self.stops.get(name, ()),
            tuple(self.news.get(key, ())),
            (name, life) in self.aborted,
        )

    def _add(self, request: Request) -> bool:
        prompt = self.tokenizer.decode(request.prompt)
        stops = self.stops.get(request.request_id, ())
        answer = self.front.submit(prompt, request.sampling, stops, request_id=request.request_id)
        for choice in range(request.sampling.n if answer.is_accepted else 0):
            self.asked[request.request_id, answer.incarnation, choice] = request.sampling
        return answer.is_accepted


def text_world(spec: Spec) -> TextWorld:
    """The world of a spec. Raises BadInput on anything else."""
    try:
        if unknown := set(spec) - {"target", "pieces", "runner", "texts", "config"}:
            raise ValueError(f"it has no field {sorted(unknown)}")
        pieces = list(spec.get("pieces", []))
        tokenizer = tokenizer_of(pieces)
        config = config_from({**spec.get("config", {}), "vocab_size": tokenizer.vocab_size})
        texts = spec.get("texts", {})
        stops = {name: tuple(map(str, text.get("stops", ()))) for name, text in texts.items()}
        said = {name: [[int(token) for token in one] for one in text["said"]] for name, text in texts.items()}
        if any(not 0 <= token < tokenizer.vocab_size for ones in said.values() for one in ones for token in one):
            raise ValueError(f"tokens are 0 to {tokenizer.vocab_size - 1}")
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BadInput(f"this is no world of streamed texts: {error}; check out the commit that wrote it") from error
    runner: Runner = ScriptedRunner(said)
    if spec.get("runner", "scripted") == "fingerprint":
        runner = FingerprintRunner(config.num_blocks, config.block_size, config.vocab_size)
    engine = TappedEngine(config, runner)
    return TextWorld(TextEngine(engine, tokenizer), engine, tokenizer, bytes_of_tokens(pieces), stops)


def _bytes(piece: str) -> bytes:
    return piece.encode("latin-1")
