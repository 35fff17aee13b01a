"""A model's files as others read them: `transformers` from a GGUF file alone or a folder, against what the engine loaded.

Both oracles compute on the engine's weights and tokens, so that a fault of the loader, the tokenizer or the chat template would
reach all parties alike. Owns that comparison, which asks for equality: every tensor bit for bit, every field of the
configuration that is used, token ids and text. Never a computation of logits, or a tolerance.
"""

from __future__ import annotations

import io
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import redirect_stderr
from dataclasses import asdict, dataclass, field
from itertools import chain, zip_longest
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from differential.hf_oracle import missing_extra, state_of
from differential.prompts import PROMPTS
from engine_under_test.model.tokenizer import Tokenizer
from engine_under_test.model.weights import LlamaConfig, LlamaWeights
from properties.verdict import Violation

Messages = Sequence[Mapping[str, str]]
Read = Callable[[Path], "Published"]

TENSORS, FIELDS, TOKENS, TEXTS, CHATS = (
    f"as published: {name}" for name in ("tensors", "fields of the model", "tokens", "texts", "chats")
)
# What a prompt rarely has, and a tokenizer that tidies its text would change.
HARD_TEXTS = (
    "e\u0301 \u00e9",
    "ﬁne ½ Ｆｕｌｌ Ⅷ",
    "  two  before, after  ",
    "\r\n\tTabs\r\n",
    "ISTANBUL İstanbul",
    "a<|im_end|>\nb",
    "",
)
CONVERSATIONS: tuple[Messages, ...] = (
    (
        {"role": "system", "content": "You are a keeper of lighthouses.  Be brief."},
        {"role": "user", "content": "What do you see?"},
        {"role": "assistant", "content": " Grey water.\n"},
        {"role": "user", "content": "And what does it mean?"},
    ),
    ({"role": "user", "content": "One"}, {"role": "assistant", "content": "Two"}, {"role": "user", "content": "Three?"}),
    *(({"role": "user", "content": prompt.text},) for prompt in PROMPTS if prompt.is_chat),
)


@dataclass(frozen=True, slots=True)
class Said:
    """What both are asked: texts with a name, and conversations (none: a model without a chat template)."""

    texts: Sequence[tuple[str, str]]
    conversations: Sequence[Messages]


REAL = Said(
    tuple((f"prompt {prompt.name!r}", prompt.text) for prompt in PROMPTS)
    + tuple((f"text {text!a}", text) for text in HARD_TEXTS),
    CONVERSATIONS,
)
FLOORS: Mapping[str, int] = {
    TENSORS: 273,  # nine in each of 30 layers, embedding, last norm and head
    FIELDS: 15,
    TOKENS: 49_152 + 17,  # and how those with a name are had from it
    TEXTS: 2 * (len(PROMPTS) + len(HARD_TEXTS)),
    CHATS: 4 * len(CONVERSATIONS) + 4 + 1,
}


@dataclass(frozen=True, slots=True)
class Published:
    """A model file in the eyes of `transformers`; ``fields`` bear the names of `LlamaConfig`, ``state`` those of `state_of`.

    ``named``: the names of tokens that are found whole in a text; ``special``: those of them that are no text. ``render`` and
    ``chat`` take messages and whether an answer is to begin; ``ends``: tokens that end an answer; ``logits``: in float32.
    """

    fields: Mapping[str, object]
    state: Mapping[str, torch.Tensor]
    named: Mapping[int, str]
    special: frozenset[int]
    vocab_size: int
    encode: Callable[[str], Sequence[int]]
    decode: Callable[[Sequence[int]], str]
    render: Callable[[Messages, bool], str]
    chat: Callable[[Messages, bool], Sequence[int]]
    ends: tuple[int, ...]
    logits: Callable[[Sequence[int]], torch.Tensor]


@dataclass(slots=True)
class Comparison:
    """What was compared, how often, and the first difference."""

    compared: Counter[str] = field(default_factory=Counter)
    violation: Violation | None = None

    @property
    def missed(self) -> tuple[str, ...]:
        """What was compared less often than the real model has it."""
        return tuple(
            f"{name} at least {floor}, found {self.compared[name]}"
            for name, floor in FLOORS.items()
            if self.compared[name] < floor
        )


def read_published(gguf: Path) -> Published:
    """Reads the file with nothing beside it, so that nothing that the engine converted can be taken for it."""
    with TemporaryDirectory() as alone:
        (Path(alone) / "model.gguf").symlink_to(gguf.resolve())
        return read_folder(Path(alone), gguf_file="model.gguf")


def read_folder(folder: Path, **of_file: str) -> Published:
    """Reads config.json, safetensors and the files of the tokenizer, or the one file that is named."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # nothing is fetched, and nobody is told of a run
    try:
        from transformers import AutoModelForCausalLM, AutoTokenizer
    except ImportError as error:
        raise missing_extra(error) from error
    with redirect_stderr(io.StringIO()):  # it draws bars
        texts: Any = AutoTokenizer.from_pretrained(folder, **of_file)
        model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager", **of_file)

    def render(messages: Messages, is_asking: bool) -> str:
        text: str = texts.apply_chat_template(list(messages), add_generation_prompt=is_asking, tokenize=False)
        return text

    def chat(messages: Messages, is_asking: bool) -> Sequence[int]:
        ids: Sequence[int] = texts.apply_chat_template(list(messages), add_generation_prompt=is_asking, tokenize=True)[
            "input_ids"
        ]
        return ids

    def logits(tokens: Sequence[int]) -> torch.Tensor:
        with torch.inference_mode():
            found: torch.Tensor = model(input_ids=torch.tensor([list(tokens)]), use_cache=False).logits
        return found[0]

    said = texts.eos_token_id if of_file else model.generation_config.eos_token_id  # a GGUF file has nothing of generation
    return Published(
        fields=_fields_of(model.config),
        state=model.state_dict(),
        named={token: added.content for token, added in texts.added_tokens_decoder.items()},
        special=frozenset(token for token, added in texts.added_tokens_decoder.items() if added.special),
        vocab_size=len(texts),
        encode=lambda text: texts(text).input_ids,
        decode=lambda ids: texts.decode(list(ids)),
        render=render,
        chat=chat,
        ends=tuple(said) if isinstance(said, list) else () if said is None else (said,),
        logits=logits,
    )


def _fields_of(config: Any) -> dict[str, object]:
    names = {
        "vocab_size": "vocab_size",
        "hidden_size": "hidden_size",
        "num_layers": "num_hidden_layers",
        "num_heads": "num_attention_heads",
        "num_kv_heads": "num_key_value_heads",
        "head_size": "head_dim",
        "intermediate_size": "intermediate_size",
        "rms_eps": "rms_norm_eps",
        "max_positions": "max_position_embeddings",
        "ties_head": "tie_word_embeddings",
        "activation": "hidden_act",
        "attention_bias": "attention_bias",
        "mlp_bias": "mlp_bias",
    }
    found = {ours: getattr(config, theirs) for ours, theirs in names.items()}
    rope: Mapping[str, object] = config.rope_parameters
    return found | {"rope_theta": rope["rope_theta"], "rope_type": rope["rope_type"]}


def compare(weights: LlamaWeights, tokenizer: Tokenizer, published: Published, said: Said = REAL) -> Comparison:
    """Everything, up to the first difference."""
    done = Comparison()
    everything = (
        _fields_apart(weights.config, published),
        _tensors_apart(weights, published),
        _tokens_apart(tokenizer, published),
        _texts_apart(tokenizer, published, said.texts),
        chain(_chats_apart(tokenizer, published, said.conversations), _spelled_apart(tokenizer, published, said.conversations)),
    )
    for what, findings in zip((FIELDS, TENSORS, TOKENS, TEXTS, CHATS), everything, strict=True):
        for found in findings:
            done.compared[what] += 1
            if found is not None:
                done.violation = found
                return done
    return done


def _fields_apart(config: LlamaConfig, published: Published) -> Iterator[Violation | None]:
    """The file states floats in 32 bits; what else this engine takes for granted is compared as well."""
    ours = asdict(config) | {"activation": "silu", "attention_bias": False, "mlp_bias": False, "rope_type": "default"}
    for name in sorted(set(ours) | set(published.fields)):
        one, other = ours.get(name), published.fields.get(name)
        is_same = np.float32(one) == np.float32(other) if isinstance(one, float) and isinstance(other, float) else one == other
        yield None if is_same else weights_differ(f"{name} of the model", repr(one), repr(other))


def _tensors_apart(weights: LlamaWeights, published: Published) -> Iterator[Violation | None]:
    ours = state_of(weights)
    for name in sorted(set(ours) | set(published.state)):
        one, other = ours.get(name), published.state.get(name)
        if one is None or other is None or (one.dtype, one.shape) != (other.dtype, other.shape):
            yield weights_differ(f"tensor {name}", _kind(one), _kind(other))
        else:
            yield _values_differ(name, one, other)


def _values_differ(name: str, one: torch.Tensor, other: torch.Tensor) -> Violation | None:
    """Bits, so that a zero of another sign is another number and a NaN is itself."""
    apart = one.contiguous().view(torch.uint8) != other.contiguous().view(torch.uint8)
    if not bool(apart.any()):
        return None
    places = apart.view(*one.shape, -1).any(dim=-1).nonzero()
    first = tuple(places[0].tolist())
    facts = (f"{len(places):,} of {one.numel():,} values differ",)
    return weights_differ(f"tensor {name} at {list(first)}", repr(one[first].item()), repr(other[first].item()), facts)


def _kind(tensor: torch.Tensor | None) -> str:
    return "no such tensor" if tensor is None else f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"


def weights_differ(subject: str, ours: str, theirs: str, facts: tuple[str, ...] = ()) -> Violation:
    return Violation("SE-1", "the model is the published one", subject, f"{ours} as loaded", f"{theirs} in the file", facts)


def _tokens_apart(tokenizer: Tokenizer, published: Published) -> Iterator[Violation | None]:
    """Each token alone. One with a name stands for it: `transformers` itself reads some names otherwise (where their characters
    spell bytes), so the vocabulary counts there."""
    for token in range(max(tokenizer.vocab_size, published.vocab_size)):
        if token >= min(tokenizer.vocab_size, published.vocab_size):
            yield said_differs("the vocabulary", f"{tokenizer.vocab_size} tokens", f"{published.vocab_size} tokens")
            continue
        name = published.named.get(token)
        theirs = published.decode((token,)) if name is None else name
        yield text_differs(f"token {token}", tokenizer.decode((token,)), theirs)
        if name is not None:
            stays = "" if token in published.special else name
            found = text_differs(f"token {token} without special ones", tokenizer.decode((token,), with_special=False), stays)
            yield found or ids_differ(f"the text {name!a}", tokenizer.encode(name, with_special=False), (token,))


def _texts_apart(tokenizer: Tokenizer, published: Published, texts: Sequence[tuple[str, str]]) -> Iterator[Violation | None]:
    for name, text in texts:
        theirs = tuple(published.encode(text))
        yield ids_differ(name, tokenizer.encode(text), theirs)
        yield text_differs(f"{name}, back from its tokens", tokenizer.decode(theirs), published.decode(theirs))


def _chats_apart(tokenizer: Tokenizer, published: Published, conversations: Sequence[Messages]) -> Iterator[Violation | None]:
    for number, messages in enumerate(conversations, start=1):
        for is_asking in (True, False):
            name = f"chat {number} of {len(messages)} messages{', answer to begin' if is_asking else ''}"
            text = tokenizer.render(messages, add_generation_prompt=is_asking)
            yield text_differs(name, text, published.render(messages, is_asking))
            yield ids_differ(name, tokenizer.chat(messages, is_asking), published.chat(messages, is_asking))
    ours, theirs = set(tokenizer.stop_token_ids), set(published.ends)
    yield None if ours >= theirs else said_differs("tokens that end an answer", str(ours), f"{theirs} in them")


def _spelled_apart(tokenizer: Tokenizer, published: Published, conversations: Sequence[Messages]) -> Iterator[Violation | None]:
    """Who spells every special token in a conversation says the same text, but no special token of his own."""
    if not conversations:
        return
    said = "a" + "".join(published.named[token] + "\n" for token in sorted(published.special)) + "b"
    for role in ("system", "user"):
        before = [{"role": "system", "content": "a"}] if role == "user" else []
        messages, plain = ([*before, {"role": role, "content": content}] for content in (said, "ab"))
        tokens = tokenizer.chat(messages, True)
        name = f"chat in which a {role} spells every special token"
        special = [[token for token in ids if token in published.special] for ids in (tokens, published.chat(plain, True))]
        yield ids_differ(f"{name}, special ones alone", *special)
        yield text_differs(f"{name}, back from its tokens", published.decode(tokens), published.render(messages, True))


def ids_differ(name: str, ours: Sequence[int], theirs: Sequence[int]) -> Violation | None:
    pairs = zip_longest(ours, theirs, fillvalue="no token")
    for place, (one, other) in enumerate(pairs):
        if one != other:
            return said_differs(f"{name}, token {place}", str(one), str(other))
    return None


def text_differs(name: str, ours: str, theirs: str) -> Violation | None:
    if ours == theirs:
        return None
    place = next(
        (at for at, (one, other) in enumerate(zip(ours, theirs, strict=False)) if one != other), min(len(ours), len(theirs))
    )
    return said_differs(f"{name}, character {place}", repr(ours[place : place + 24]), repr(theirs[place : place + 24]))


def said_differs(subject: str, ours: str, theirs: str) -> Violation:
    return Violation(
        "SC-12",
        "texts and tokens are those of the published model",
        subject,
        f"{ours} as we say it",
        f"{theirs} as transformers says it",
    )
