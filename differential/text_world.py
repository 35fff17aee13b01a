"""A text front over an engine whose tokens are known: built from a spec, run through operations, each choice gathered.

Owns the meaning of a spec: {"target": "text", "pieces": [...], "runner": "scripted" | "fingerprint", "drafts": how many at most
for a row and step, "texts": {name: {"said": [[token, ...] of each choice], "stops": [...], "bad": [...], "is_chat": bool}},
"config": {...}}. The name of a text is that of its request and, from the second life of the request on, says which
(`script_of`). ``bad``: bad words. The first tokens are those of `MARKED` (`END` ends a
text), the 256 after them single bytes, the rest ``pieces``, whose characters stand for bytes (Latin-1). Never judges
(`properties.streamed_text`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers

from engine_under_test.drafting import Drafting
from engine_under_test.engine import Engine
from engine_under_test.errors import BadInput
from engine_under_test.execution.fingerprint import FingerprintRunner
from engine_under_test.execution.runner import Runner
from engine_under_test.model.tokenizer import Special, Tokenizer
from engine_under_test.sampling.proposers import PromptLookup
from engine_under_test.sampling.speculation import Proposer
from engine_under_test.text import TextEngine
from engine_under_test.types import Admission, FinishReason, Logprobs, Output, RefusalReason, Request, SamplingParams
from models.build import config_from
from properties.op import Op, OpKind
from properties.scripted import END, FailingRunner, ScriptDrafts, ScriptedRunner, byte_spelling
from properties.streamed_text import Answer, EngineSide, Given, News, ToldText

TARGET = "text"
# A special token stands for its name, whatever that is: no ASCII, all or some of it characters that spell bytes, or none.
SPECIAL = ("<end>", "<mark>", "<é>", "<｜漢｜>", "Ġ字")
MARKED = (*SPECIAL, "[tö]")  # the last is defined by a user: matched whole too, but text
MARK = 1
FIRST_BYTE = len(MARKED)
CHAT_TEMPLATE = "{% for one in messages %}<mark>{{ one.role }}\n{{ one.content | trim }}<end>\n{% endfor %}<mark>"
_BYTES_OF_FIRST = (*(one.encode() for one in MARKED), *(bytes([byte]) for byte in range(0x100)))
_SPARE_STEPS = 60
_LIFE = ", life "
Key = tuple[str, int, int]  # request, incarnation, choice
Spec = Mapping[str, Any]


def script_of(name: str, life: int) -> str:
    """Under which name the text of a request's life stands; lives count from 1."""
    return name if life == 1 else f"{name}{_LIFE}{life}"


def first_script_of(script: str) -> str:
    """The text of the first life of the same request."""
    return script.partition(_LIFE)[0]


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
    """Remembers the requests that it takes and the outputs that it hands out."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.told: list[Output] = []
        self.given: dict[tuple[str, int], Given] = {}

    def submit(self, request: Request) -> Admission:
        """See `Engine.submit`."""
        answer = super().submit(request)
        self.given[request.request_id, answer.incarnation] = Given(request.prompt, request.sampling.bad_words, request.adapter)
        return answer

    def take_outputs(self) -> tuple[Output, ...]:
        """See `Engine.take_outputs`."""
        outputs = super().take_outputs()
        self.told += outputs
        return outputs


@dataclass(slots=True)
class _Heard:
    """What the engine handed out of one choice."""

    tokens: list[int] = field(default_factory=list)
    ends: list[tuple[int, FinishReason]] = field(default_factory=list)
    told_after: list[int] = field(default_factory=list)
    logprobs: list[Logprobs] = field(default_factory=list)

    def hear(self, output: Output) -> None:
        self.tokens += output.token_ids
        self.told_after.append(len(self.tokens))
        self.logprobs += output.logprobs
        if output.finish_reason is not None:
            self.ends.append((len(self.tokens), output.finish_reason))


@dataclass(slots=True)
class TextWorld:
    """The front, its engine, and what was asked and told so far."""

    front: TextEngine
    engine: TappedEngine
    tokenizer: Tokenizer
    pieces: tuple[bytes, ...]
    stops: Mapping[str, tuple[str, ...]]
    bad_words: Mapping[str, tuple[str, ...]]
    chats: frozenset[str]
    runner: FailingRunner
    scripts: dict[tuple[str, int], str]  # the names of texts, by request and incarnation
    asked: dict[Key, SamplingParams] = field(default_factory=dict)
    news: dict[Key, list[News]] = field(default_factory=dict)
    aborted: set[tuple[str, int]] = field(default_factory=set)
    written: dict[tuple[str, int], Given] = field(default_factory=dict)
    live: set[Key] = field(default_factory=set)  # in the engine when the reader was told of its end
    orphans: dict[Key, tuple[int, ...]] = field(default_factory=dict)
    left: tuple[str, ...] = ()
    lives: dict[str, list[int]] = field(default_factory=dict)  # incarnations of each name, in order
    open: dict[str, set[int]] = field(default_factory=dict)  # choices of its last life that the reader waits for
    answers: dict[tuple[str, int], list[Answer]] = field(default_factory=dict)
    strangers: list[str] = field(default_factory=list)  # news that nobody waits for
    met: Counter[str] = field(default_factory=Counter)
    just: dict[str, str] = field(default_factory=dict)  # how names ended since the last step

    def apply(self, op: Op) -> bool:
        """False for what does not apply here."""
        if op.kind is OpKind.ADD and op.request is not None:
            return self._add(op.request)
        if op.kind is OpKind.ABORT:
            return self._abort(op.request_id)
        if op.kind is OpKind.SICK_ROW:
            self.runner.sick = max(op.k, 0)
            return True
        if op.kind is OpKind.STEP and (self.front.has_work or self.engine.has_work):
            self.step()
            return True
        return False

    def step(self) -> None:
        """One iteration, and what it lets the readers see. News of a name belong to its first life that has not been told its
        end: they come in order."""
        self.just.clear()
        for delta in self.front.step():
            keys = [key for key in self.asked if (key[0], key[2]) == (delta.request_id, delta.choice)]
            if not keys:
                self.strangers.append(f"news for request {delta.request_id}, choice {delta.choice}, which nobody asked for")
                continue
            key = next((key for key in keys if key not in self.orphans), keys[-1])
            news = News(delta.text, delta.num_tokens, delta.finish_reason, delta.logprobs)
            self.news.setdefault(key, []).append(news)
            if delta.finish_reason is not None:
                self._look_behind(key)
                self._ended(key, delta.finish_reason)

    def _ended(self, key: Key, reason: FinishReason) -> None:
        name, life, choice = key
        if life == self.lives[name][-1]:
            self.open[name].discard(choice)
            if reason is FinishReason.STOP:
                self.just[name] = "stopped"

    def _abort(self, name: str) -> bool:
        is_taken = self.front.abort(name)
        is_live = self._answered(name, is_taken, is_abort=True)
        if not is_taken or name not in self.lives:
            self.met["an abort of what is not live"] += 1
            return is_taken
        self.met["aborted just when a sibling stopped"] += self.just.get(name) == "stopped"
        self.just[name] = "aborted in flight" if is_live and self.engine.plans_in_flight else "aborted"
        self.aborted.add((name, self.lives[name][-1]))
        self.open[name].clear()
        return True

    def _answered(self, name: str, is_taken: bool, *, is_abort: bool) -> bool:
        """Notes the answer; whether the name is live."""
        is_live = bool(self.open.get(name))
        if name in self.lives:
            self.answers.setdefault((name, self.lives[name][-1]), []).append(Answer(is_abort, is_live, is_taken))
        return is_live

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
            *self.strangers,
            *["a choice that the text front waits for"] * self.front.has_work,
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
        told = {key: _Heard() for key in self.asked}
        for output in self.engine.told:
            told[output.request_id, output.incarnation, output.choice].hear(output)
        return tuple(self._told(key, sampling, told[key]) for key, sampling in self.asked.items())

    def _told(self, key: Key, sampling: SamplingParams, heard: _Heard) -> ToldText:
        name, life, choice = key
        tokens = heard.tokens
        text = self.scripts[name, life]
        return ToldText(
            name,
            choice,
            tuple(tokens),
            tuple(self.pieces[token] for token in tokens),
            sampling,
            frozenset((*sampling.stop_token_ids, END)),
            self.stops.get(text, ()),
            tuple(self.news.get(key, ())),
            (name, life) in self.aborted,
            EngineSide(
                self.engine.given[name, life],
                self.written[name, life],
                tuple(heard.ends),
                tuple(heard.told_after),
                tuple(heard.logprobs),
                key in self.live,
                self.orphans.get(key, ()),
                self.left,
            ),
            self.lives[name].index(life) + 1,
            tuple(self.answers.get((name, life), ())) if choice == 0 else (),
            (name, life) in self.runner.blamed,
        )

    def _add(self, request: Request) -> bool:
        try:
            text = b"".join(self.pieces[token] for token in request.prompt).decode()
        except (UnicodeDecodeError, IndexError):
            return False  # no text that anybody could write
        name, sampling = request.request_id, request.sampling
        script = script_of(name, len(self.lives.get(name, ())) + 1)
        is_chat = script in self.chats
        prompt = [{"role": "user", "content": text}] if is_chat else text
        words = self.bad_words.get(script, ())
        answer = self.front.submit(
            prompt, sampling, self.stops.get(script, ()), bad_words=words, request_id=name, adapter=request.adapter
        )
        is_duplicate = answer.refusal is RefusalReason.DUPLICATE_ID
        self.met["a name in use refused"] += is_duplicate
        if answer.is_accepted or is_duplicate:
            self._answered(name, answer.is_accepted, is_abort=False)
        if not answer.is_accepted:
            return False
        self._meet_return(name, sampling.n)
        life = name, answer.incarnation
        tokens = written_in_chat(request.prompt) if is_chat else request.prompt
        self.written[life] = Given(tokens, spellings_of(words), request.adapter)
        self.scripts[life] = script
        self.lives.setdefault(name, []).append(answer.incarnation)
        self.open[name] = set(range(sampling.n))
        self.asked.update({(*life, choice): sampling for choice in range(sampling.n)})
        return True

    def _meet_return(self, name: str, choices: int) -> None:
        if name not in self.lives:
            return
        just = self.just.get(name, "")
        self.met["a name came back"] += 1
        self.met["came back forked"] += choices > 1
        self.met["came back right behind an abort"] += just.startswith("aborted")
        self.met["came back with results in flight"] += just == "aborted in flight"
        self.met["came back right behind a stop"] += just == "stopped"


def written_in_chat(content: Sequence[int]) -> tuple[int, ...]:
    """The tokens of a conversation in which a user writes this: the special tokens of the template, and the bytes of the names
    of others. White space around it is none of a user's business in `CHAT_TEMPLATE`."""
    space = [FIRST_BYTE + byte for byte in b" \r\n"]
    said = list(content)
    while said and said[0] in space:
        said = said[1:]
    while said and said[-1] in space:
        said = said[:-1]
    spelled = [_bytes_as_tokens(SPECIAL[token]) if token < len(SPECIAL) else (token,) for token in said]
    inside = [token for tokens in spelled for token in tokens]
    return (MARK, *_bytes_as_tokens("user\n"), *inside, END, *_bytes_as_tokens("\n"), MARK)


def spellings_of(words: Sequence[str]) -> tuple[tuple[int, ...], ...]:
    """Bad words at the begin of a text, and behind a space, each once."""
    return tuple(dict.fromkeys(_bytes_as_tokens(text) for word in words for text in (word, f" {word.lstrip()}")))


def _bytes_as_tokens(text: str) -> tuple[int, ...]:
    return tuple(FIRST_BYTE + byte for byte in text.encode())


def text_world(spec: Spec) -> TextWorld:
    """The world of a spec. Raises BadInput on anything else."""
    try:
        if unknown := set(spec) - {"target", "pieces", "runner", "drafts", "texts", "config"}:
            raise ValueError(f"it has no field {sorted(unknown)}")
        pieces = list(spec.get("pieces", []))
        tokenizer = tokenizer_of(pieces)
        config = config_from({**spec.get("config", {}), "vocab_size": tokenizer.vocab_size})
        texts = spec.get("texts", {})
        stops = {name: tuple(map(str, text.get("stops", ()))) for name, text in texts.items()}
        bad_words = {name: tuple(map(str, text.get("bad", ()))) for name, text in texts.items()}
        width = int(spec.get("drafts", 0))
        chats = frozenset(name for name, text in texts.items() if text.get("is_chat"))
        said = {name: [[int(token) for token in one] for one in text["said"]] for name, text in texts.items()}
        if any(not 0 <= token < tokenizer.vocab_size for ones in said.values() for one in ones for token in one):
            raise ValueError(f"tokens are 0 to {tokenizer.vocab_size - 1}")
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BadInput(f"this is no world of streamed texts: {error}; check out the commit that wrote it") from error
    scripts: dict[tuple[str, int], str] = {}
    scripted = ScriptedRunner(said, scripts)
    runner: Runner = scripted
    proposer: Proposer = ScriptDrafts(scripted, config.vocab_size, width)
    if spec.get("runner", "scripted") == "fingerprint":
        runner = FingerprintRunner(config.num_blocks, config.block_size, config.vocab_size)
        proposer = PromptLookup(max(width, 1))
    failing = FailingRunner(runner)
    engine = TappedEngine(config, failing, drafting=Drafting(proposer) if width > 0 else None)
    front = TextEngine(engine, tokenizer)
    return TextWorld(front, engine, tokenizer, bytes_of_tokens(pieces), stops, bad_words, chats, failing, scripts)


def _bytes(piece: str) -> bytes:
    return piece.encode("latin-1")
