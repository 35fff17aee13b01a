"""A text front over an engine whose tokens are known: built from a spec, run through operations, each choice gathered.

Owns the meaning of a spec: {"target": "text", "pieces": [...], "runner": "scripted" | "fingerprint", "texts": {name: {"said":
[[token, ...] of each choice], "stops": [...], "is_chat": bool}}, "config": {...}}. The first tokens are those of `MARKED`
(`END` ends a text), the 256 after them single bytes, the rest ``pieces``, whose characters stand for bytes (Latin-1). Never
judges (`properties.streamed_text`).
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
from engine_under_test.execution.runner import Runner
from engine_under_test.model.tokenizer import Special, Tokenizer
from engine_under_test.text import TextEngine
from engine_under_test.types import Admission, FinishReason, Output, Request, SamplingParams
from models.build import config_from
from properties.op import Op, OpKind
from properties.scripted import END, ScriptedRunner, byte_spelling
from properties.streamed_text import EngineSide, News, ToldText

TARGET = "text"
# A special token stands for its name, whatever that is: no ASCII, all or some of it characters that spell bytes, or none.
SPECIAL = ("<end>", "<mark>", "<é>", "<｜漢｜>", "Ġ字")
MARKED = (*SPECIAL, "[tö]")  # the last is defined by a user: matched whole too, but text
MARK = 1
FIRST_BYTE = len(MARKED)
CHAT_TEMPLATE = "{% for one in messages %}<mark>{{ one.role }}\n{{ one.content | trim }}<end>\n{% endfor %}<mark>"
_BYTES_OF_FIRST = (*(one.encode() for one in MARKED), *(bytes([byte]) for byte in range(0x100)))
_SPARE_STEPS = 60
Key = tuple[str, int, int]  # request, incarnation, choice
Spec = Mapping[str, Any]


def bytes_of_tokens(pieces: Sequence[str]) -> tuple[bytes, ...]:
    """What each token of a vocabulary stands for."""
    return (*_BYTES_OF_FIRST, *(_bytes(one) for one in pieces))


def tokenizer_of(pieces: Sequence[str]) -> Tokenizer:
    """The engine's own tokenizer over that vocabulary."""
    spelled = byte_spelling()
    names = [*MARKED, *spelled, *("".join(spelled[byte] for byte in _bytes(piece)) for piece in pieces)]
    backend = tokenizers.Tokenizer(models.BPE(vocab={name: token for token, name in enumerate(names)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(name, normalized=False, special=True) for name in SPECIAL])
    backend.add_tokens([AddedToken(name, normalized=False, special=False) for name in MARKED[len(SPECIAL) :]])
    return Tokenizer(backend, Special(stop=(END,)), CHAT_TEMPLATE)


class TappedEngine(Engine):
    """Remembers the prompts that it takes and the outputs that it hands out."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.told: list[Output] = []
        self.prompts: dict[tuple[str, int], tuple[int, ...]] = {}

    def submit(self, request: Request) -> Admission:
        """See `Engine.submit`."""
        answer = super().submit(request)
        self.prompts[request.request_id, answer.incarnation] = request.prompt
        return answer

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
    chats: frozenset[str] = frozenset()
    asked: dict[Key, SamplingParams] = field(default_factory=dict)
    news: dict[Key, list[News]] = field(default_factory=dict)
    aborted: set[tuple[str, int]] = field(default_factory=set)
    written: dict[tuple[str, int], tuple[int, ...]] = field(default_factory=dict)
    live: set[Key] = field(default_factory=set)  # in the engine when the reader was told of its end
    orphans: dict[Key, tuple[int, ...]] = field(default_factory=dict)
    left: tuple[str, ...] = ()

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
            key = delta.request_id, life, delta.choice
            self.news.setdefault(key, []).append(news)
            if delta.finish_reason is not None:
                self._look_behind(key)

    def drain(self) -> None:
        """Steps until nothing is left, but no more than a healthy engine needs."""
        most = _SPARE_STEPS + 4 * sum(sampling.max_tokens for sampling in self.asked.values())
        while (self.front.has_work or self.engine.has_work) and most:
            self.step()
            most -= 1
        while self.engine.plans_in_flight and most:  # launched for choices that have ended: their results are dropped
            self.engine.step()
            most -= 1
        self.engine.poll()
        self.engine.take_outputs()  # also what nobody waits for any more
        now = self.engine.snapshot()
        self.left = (
            *(f"request {each.request_id}, choice {each.choice}" for each in now.sequences()),
            *(f"block {block} held" for block, count in enumerate(now.ref_counts or ()) if count),
            *(f"block {block} in quarantine" for block in now.quarantined),
            *(f"plan {plan} in flight" for plan in now.plans),
        )

    def _look_behind(self, key: Key) -> None:
        """What the engine still has of a choice of whose end the reader was just told."""
        now = self.engine.snapshot()
        sequences = tuple(now.sequences())
        if key in {(each.request_id, each.incarnation, each.choice) for each in sequences}:
            self.live.add(key)
        held = {block for each in sequences for block in (*each.table, *each.reserved)}
        held.update(now.pinned, *now.reservations.values())
        self.orphans[key] = tuple(block for block, count in enumerate(now.ref_counts or ()) if count and block not in held)

    def told(self) -> tuple[ToldText, ...]:
        """Every choice of every accepted request."""
        tokens: dict[Key, list[int]] = {key: [] for key in self.asked}
        ends: dict[Key, list[tuple[int, FinishReason]]] = {key: [] for key in self.asked}
        for output in self.engine.told:
            key = output.request_id, output.incarnation, output.choice
            tokens[key] += output.token_ids
            if output.finish_reason is not None:
                ends[key].append((len(tokens[key]), output.finish_reason))
        return tuple(self._told(key, sampling, tokens[key], ends[key]) for key, sampling in self.asked.items())

    def _told(self, key: Key, sampling: SamplingParams, tokens: list[int], ends: list[tuple[int, FinishReason]]) -> ToldText:
        name, life, choice = key
        return ToldText(
            name,
            choice,
            tuple(tokens),
            tuple(self.pieces[token] for token in tokens),
            sampling,
            frozenset((*sampling.stop_token_ids, END)),
            self.stops.get(name, ()),
            tuple(self.news.get(key, ())),
            (name, life) in self.aborted,
            EngineSide(
                self.engine.prompts[name, life],
                self.written[name, life],
                tuple(ends),
                key in self.live,
                self.orphans.get(key, ()),
                self.left,
            ),
        )

    def _add(self, request: Request) -> bool:
        try:
            text = b"".join(self.pieces[token] for token in request.prompt).decode()
        except (UnicodeDecodeError, IndexError):
            return False  # no text that anybody could write
        stops = self.stops.get(request.request_id, ())
        is_chat = request.request_id in self.chats
        prompt = [{"role": "user", "content": text}] if is_chat else text
        answer = self.front.submit(prompt, request.sampling, stops, request_id=request.request_id)
        written = written_in_chat(request.prompt) if is_chat else request.prompt
        self.written[request.request_id, answer.incarnation] = written
        for choice in range(request.sampling.n if answer.is_accepted else 0):
            self.asked[request.request_id, answer.incarnation, choice] = request.sampling
        return answer.is_accepted


def written_in_chat(content: Sequence[int]) -> tuple[int, ...]:
    """The tokens of a conversation in which a user writes this: the special tokens of the template, and the bytes of the names
    of others. White space around it is none of a user's business in `CHAT_TEMPLATE`."""
    space = [FIRST_BYTE + byte for byte in b" \n"]
    said = list(content)
    while said and said[0] in space:
        said = said[1:]
    while said and said[-1] in space:
        said = said[:-1]
    spelled = [_bytes_as_tokens(SPECIAL[token]) if token < len(SPECIAL) else (token,) for token in said]
    inside = [token for tokens in spelled for token in tokens]
    return (MARK, *_bytes_as_tokens("user\n"), *inside, END, *_bytes_as_tokens("\n"), MARK)


def _bytes_as_tokens(text: str) -> tuple[int, ...]:
    return tuple(FIRST_BYTE + byte for byte in text.encode())


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
        chats = frozenset(name for name, text in texts.items() if text.get("is_chat"))
        said = {name: [[int(token) for token in one] for one in text["said"]] for name, text in texts.items()}
        if any(not 0 <= token < tokenizer.vocab_size for ones in said.values() for one in ones for token in one):
            raise ValueError(f"tokens are 0 to {tokenizer.vocab_size - 1}")
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BadInput(f"this is no world of streamed texts: {error}; check out the commit that wrote it") from error
    runner: Runner = ScriptedRunner(said)
    if spec.get("runner", "scripted") == "fingerprint":
        runner = FingerprintRunner(config.num_blocks, config.block_size, config.vocab_size)
    engine = TappedEngine(config, runner)
    return TextWorld(TextEngine(engine, tokenizer), engine, tokenizer, bytes_of_tokens(pieces), stops, chats)


def _bytes(piece: str) -> bytes:
    return piece.encode("latin-1")
