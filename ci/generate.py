"""Text from a model, streamed: what `assay generate` does once its line is understood.

Owns: which model, how large an engine, and what is measured. Never: flags and exit codes (`generate_command.py`), or the text
front itself (`engine_under_test/text.py`).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Protocol

import torch

from ci.draft_flags import drafting_of
from ci.grammar_flags import FLAGS
from engine_under_test import Engine, EngineConfig, FinishReason, SamplingParams
from engine_under_test.errors import BadInput
from engine_under_test.execution.adapter_slots import AdapterLibrary
from engine_under_test.execution.attention import Eager
from engine_under_test.execution.transformer import TransformerRunner
from engine_under_test.model.lora import load_lora
from engine_under_test.model.weights import LlamaWeights
from engine_under_test.sampling.adjustments import NO_TOKEN_LEFT
from engine_under_test.sampling.grammar import TokenTexts, grammars_of
from engine_under_test.text import TextDelta, TextEngine, TextTokenizer
from engine_under_test.types import Adapter, Logprobs

BLOCK_SIZE = 16
_TOKENS_PER_STEP = 512
TINY = "tiny"
_ADAPTER = Adapter("adapter", 1)

Show = Callable[[TextDelta], None]


class Words(TextTokenizer, TokenTexts, Protocol):
    """A tokenizer of which single tokens are known too."""


@dataclass(frozen=True, slots=True)
class Model:
    """What is needed to speak: weights, tokenizer, and a name for people."""

    title: str
    weights: LlamaWeights
    tokenizer: Words


@dataclass(frozen=True, slots=True)
class Fallbacks:
    """Switches to plainer paths, after the names of the configuration; what the model says does not change by them."""

    eager: bool = False  # attention row by row
    batch_invariant: bool = False
    no_prefix_cache: bool = False
    no_batching: bool = False
    no_chunking: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """Those that are on, as a person says them."""
        return tuple(each.name.replace("_", " ") for each in fields(self) if getattr(self, each.name))


@dataclass(frozen=True, slots=True)
class Task:
    """What is asked of a model. ``is_chat``: the prompt is what a user says in a conversation. ``draft``: see `draft_flags`."""

    prompt: str
    sampling: SamplingParams
    stop: tuple[str, ...] = ()
    is_chat: bool = False
    bad_words: tuple[str, ...] = ()
    fallbacks: Fallbacks = Fallbacks()
    draft: str | None = None
    draft_width: int = 4
    adapter: str | None = None  # the folder of one


@dataclass(frozen=True, slots=True)
class Drafts:
    """Tokens that were proposed and verified, and how many of them stood."""

    proposed: int
    accepted: int


@dataclass(frozen=True, slots=True)
class Said:
    """One choice in full."""

    text: str
    num_tokens: int
    finish_reason: FinishReason
    logprobs: tuple[Logprobs, ...] = ()


@dataclass(frozen=True, slots=True)
class Generated:
    """All choices, and how long they took. ``first_s``: up to the first token of any; ``total_s``: all of it. ``text_of``: how
    single tokens read."""

    choices: tuple[Said, ...]
    num_prompt_tokens: int
    first_s: float
    total_s: float
    text_of: Callable[[int], str] = str
    drafts: Drafts | None = None

    @property
    def num_tokens(self) -> int:
        return sum(choice.num_tokens for choice in self.choices)

    @property
    def tokens_per_s(self) -> float:
        return self.num_tokens / self.total_s

    def to_json(self) -> dict[str, Any]:
        choices: list[dict[str, Any]] = [
            {"text": each.text, "tokens": each.num_tokens, "finish_reason": each.finish_reason.value} for each in self.choices
        ]
        for choice, said in zip(choices, self.choices, strict=True):
            if said.logprobs:
                choice["logprobs"] = [self._told(each) for each in said.logprobs]
        figures: dict[str, Any] = {"first_s": self.first_s, "total_s": self.total_s, "tokens_per_s": self.tokens_per_s}
        if self.drafts is not None:
            figures["drafts"] = {"proposed": self.drafts.proposed, "accepted": self.drafts.accepted}
        return {"choices": choices, "prompt_tokens": self.num_prompt_tokens, **figures}

    def _told(self, logprobs: Logprobs) -> dict[str, Any]:
        """A token with its log-probability, and the most probable ones at its place."""
        told = [
            {"token": token, "text": self.text_of(token), "logprob": _finite(value)}
            for token, value in zip(*logprobs, strict=True)
        ]
        return told[0] | {"top": told[1:]}

    def told_lines(self) -> Iterator[str]:
        """The same for people: a line a token."""
        for number, choice in enumerate(self.choices, 1):
            for logprobs in choice.logprobs:
                words = [f"{self.text_of(token)!r} {value:.3f}" for token, value in zip(*logprobs, strict=True)]
                yield f"[{number}] {words[0]}" + (f"   of {', '.join(words[1:])}" if words[1:] else "")


def _finite(value: float) -> float | None:
    """JSON has no infinity: what can not come has none."""
    return value if value > -math.inf else None


def open_model(name: str) -> Model:
    """The fetched model, the tiny one, or what lies at a path. Raises BadInput if there is no such thing."""
    from engine_under_test.model.fetch import SMOLLM2, model_folder
    from engine_under_test.model.load import load_weights
    from engine_under_test.model.tokenizer import load_tokenizer

    if name == TINY:
        from ci.tiny import ByteTokenizer, tiny_weights

        return Model("a tiny random model", tiny_weights(), ByteTokenizer())
    folder: Path | None = Path(name)
    title = name
    if name == SMOLLM2.name:
        folder, title = model_folder(), SMOLLM2.title
        if folder is None:
            raise BadInput(f"{title} must have been fetched before it can speak, and it was not; run assay model fetch")
    assert folder is not None  # only the fetched model can be missing
    if folder.suffix == ".safetensors" and folder.is_file():  # the tokenizer lies beside it
        if not (folder.parent / "config.json").is_file():
            raise BadInput(f"a safetensors file needs a config.json beside it, but {folder} has none; name its folder")
        folder = folder.parent
    return Model(title, load_weights(folder), load_tokenizer(folder))


class Speaker:
    """A model in an engine that is just large enough for one task at a time."""

    def __init__(self, model: Model, task: Task) -> None:
        tokens = _tokens_of(model.tokenizer, task)
        sampling, config, fallbacks = task.sampling, model.weights.config, task.fallbacks
        self._tokenizer = model.tokenizer
        length = len(tokens) + max(sampling.max_tokens, 1)
        if length > config.max_positions:
            raise BadInput(
                f"prompt and answer together must fit in the {config.max_positions} positions of {model.title}, found "
                f"{len(tokens)} and {sampling.max_tokens}; shorten the prompt or lower --max-tokens"
            )
        num_choices = max(sampling.n, 1)
        library = _library_of(task.adapter, model.weights)
        engine_config = EngineConfig(
            num_blocks=num_choices * (-(-length // BLOCK_SIZE) + 1),
            block_size=BLOCK_SIZE,
            max_tokens_per_step=max(_TOKENS_PER_STEP, num_choices, length if fallbacks.no_chunking else 0),
            max_num_seqs=num_choices,
            vocab_size=config.vocab_size,
            adapters=() if library is None else (_ADAPTER,),
            max_active_adapters=1,
            model_revision=model.title,
            prefix_cache=not fallbacks.no_prefix_cache,
            batching=not fallbacks.no_batching,
            chunking=not fallbacks.no_chunking,
        )
        grammars = None if sampling.grammar is None else grammars_of(model.tokenizer, config.vocab_size)
        self._runner = TransformerRunner(
            model.weights,
            engine_config.num_blocks,
            BLOCK_SIZE,
            attention=Eager() if fallbacks.eager else None,
            is_batch_invariant=fallbacks.batch_invariant,
            grammars=grammars,
            adapters=library,
            num_adapter_slots=1,
        )
        self._drafting = drafting_of(
            task.draft,
            task.draft_width,
            config.vocab_size,
            engine_config.num_blocks,
            BLOCK_SIZE,
            lambda name: open_model(name).weights,
            grammars,
        )
        engine = Engine(engine_config, self._runner, grammars=grammars, drafting=self._drafting)
        self._front = TextEngine(engine, model.tokenizer)
        self._task = task
        self._num_prompt_tokens = len(tokens)

    @property
    def description(self) -> str:
        """What computes, where, and by which fallbacks."""
        adapter = (f"adapter {self._task.adapter}",) if self._task.adapter is not None else ()
        return ", ".join((self._runner.description, *adapter, *self._task.fallbacks.names))

    def speak(self, show: Show) -> Generated:
        """Runs the task to its end; `show` is told everything as it comes."""
        task = self._task
        began = time.perf_counter()
        adapter = None if task.adapter is None else _ADAPTER
        answer = self._front.submit(_prompt_of(task), task.sampling, task.stop, bad_words=task.bad_words, adapter=adapter)
        if not answer.is_accepted:
            raise BadInput(answer.message)
        texts = [""] * task.sampling.n
        told: list[list[Logprobs]] = [[] for _ in texts]
        ends: dict[int, Said] = {}
        first_s = 0.0
        for delta in self._front.stream():
            first_s = first_s or time.perf_counter() - began
            texts[delta.choice] += delta.text
            told[delta.choice] += delta.logprobs
            if delta.finish_reason is not None:
                if delta.finish_reason is FinishReason.ERROR:
                    raise BadInput(why_it_failed(task, delta))
                ends[delta.choice] = Said(texts[delta.choice], delta.num_tokens, delta.finish_reason, tuple(told[delta.choice]))
            show(delta)
        total_s = time.perf_counter() - began
        choices = tuple(ends[choice] for choice in sorted(ends))
        drafts = None
        if (drafting := self._drafting) is not None:
            drafts = Drafts(drafting.num_proposed, drafting.num_accepted)
        return Generated(choices, self._num_prompt_tokens, first_s, total_s, self._text_of, drafts)

    def _text_of(self, token: int) -> str:
        stream = self._tokenizer.stream()
        return stream.push(token) + stream.end()


def why_it_failed(task: Task, delta: TextDelta) -> str:
    """In the words of the command line, where its options are to blame."""
    others = [
        flag
        for flag, is_given in (("--allowed-tokens", task.sampling.allowed_token_ids), ("--bad-words", task.bad_words))
        if is_given
    ]
    if task.sampling.grammar is None or not others or NO_TOKEN_LEFT not in delta.message:
        return f"the model must be able to compute this, but it failed: {delta.message}"
    flag = FLAGS[task.sampling.grammar.kind]
    return (
        f"{flag} and {' and '.join(others)} must leave a token that may come, found none behind {delta.num_tokens} tokens; "
        f"leave {flag} or {' or '.join(others)} away"
    )


def _library_of(folder: str | None, weights: LlamaWeights) -> AdapterLibrary | None:
    """The adapter in a folder, ready to be loaded. BadInput if it is none of this model."""
    if folder is None:
        return None
    lora = load_lora(Path(folder), weights.config, weights.embedding.dtype)
    library = AdapterLibrary(weights.config, lora.rank)
    library.add(_ADAPTER, lora)
    return library


def set_threads(threads: int | None) -> None:
    """How many cores the model may use; None leaves it to torch."""
    if threads is not None:
        torch.set_num_threads(threads)


def _prompt_of(task: Task) -> str | list[dict[str, str]]:
    return [{"role": "user", "content": task.prompt}] if task.is_chat else task.prompt


def _tokens_of(tokenizer: TextTokenizer, task: Task) -> tuple[int, ...]:
    prompt = _prompt_of(task)
    return tokenizer.encode(prompt) if isinstance(prompt, str) else tokenizer.chat(prompt)
