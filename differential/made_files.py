"""Small models as files, made from a seed: folders of safetensors and GGUF files, each with what another one lacks.

Owns how the files are written: from the formats' documents, by the libraries of the formats, and not by the engine. What the
files say by leaving it out is said nowhere here. Never: a reader, or what is right (`made_models.py`).
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import gguf
import tokenizers
import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors

from differential.hf_oracle import state_of
from differential.made_texts import BEGIN, BOS, CONTROL, EOS, EOT, JOINED, NORMAL, TRIMMED, TURNS, UNK, Vocabulary, vocabulary
from engine_under_test.model.weights import LlamaConfig, LlamaWeights, tiny_random
from properties.tiny_gguf import F32, split_in_two, write_gguf

_THREES = (  # published with Llama 3
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SHAPE = LlamaConfig(0x200, 32, 1, 4, 2, 16, 64)  # a head is not hidden / heads; more rows than the vocabulary has tokens
_PLAIN = replace(SHAPE, num_kv_heads=4, head_size=8)  # what a file means that says neither
Backend = Callable[[Vocabulary], tokenizers.Tokenizer]


@dataclass(frozen=True, slots=True)
class Made:
    """A model in a file of its own folder. ``ends``: names of the tokens that end an answer.
    ``begins``: what every stretch of text between names begins with, if not with it already."""

    name: str
    write: Callable[[Path, int], Path]  # into a folder, from a seed; what is to be loaded
    ends: tuple[str, ...]
    has_chat: bool = True
    begins: str = ""


@dataclass(frozen=True, slots=True)
class _Folder:
    """What stands in the files. ``config`` changes config.json: a key with None is left out."""

    backend: Backend
    dtype: torch.dtype
    shape: LlamaConfig = SHAPE
    config: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    generation: Mapping[str, Any] | None = None
    template_file: str = ""
    is_split: bool = False

    def __call__(self, folder: Path, seed: int) -> Path:
        chance = random.Random(seed)
        shape = replace(
            self.shape, rope_theta=float(chance.randrange(2_000, 900_000)), rms_eps=chance.choice((1e-4, 1e-3, 3e-6))
        )
        known = vocabulary(seed, has_outside=True)
        _write_weights(folder, shape, self.dtype, seed, is_split=self.is_split)
        ids = {token: place for place, token in enumerate(known.tokens)}
        config = {key: _numbered(value, ids, shape) for key, value in {**_config_of(shape), **self.config}.items()}
        _write(folder / "config.json", {key: value for key, value in config.items() if value is not None})
        self.backend(known).save(str(folder / "tokenizer.json"))
        names = {"bos_token": BOS, "eos_token": {"content": EOS, "__type": "AddedToken"}, "unk_token": UNK}
        settings = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "clean_up_tokenization_spaces": False,
            **names,
            **self.settings,
        }
        _write(folder / "tokenizer_config.json", settings)
        if self.generation is not None:
            said = {key: _numbered(value, ids, shape) for key, value in self.generation.items()}
            _write(folder / "generation_config.json", said)
        if self.template_file:
            (folder / "chat_template.jinja").write_text(self.template_file, encoding="utf-8")
        return folder


def _config_of(shape: LlamaConfig) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "vocab_size": shape.vocab_size,
        "hidden_size": shape.hidden_size, "num_hidden_layers": shape.num_layers, "num_attention_heads": shape.num_heads,
        "num_key_value_heads": shape.num_kv_heads, "head_dim": shape.head_size, "intermediate_size": shape.intermediate_size,
        "rms_norm_eps": shape.rms_eps, "max_position_embeddings": 384, "tie_word_embeddings": shape.ties_head,
    }  # fmt: skip


def _numbered(value: Any, ids: Mapping[str, int], shape: LlamaConfig) -> Any:
    """Names of tokens become their numbers, and "theta" the base of the rotary positions."""
    if isinstance(value, dict):
        return {key: _numbered(inner, ids, shape) for key, inner in value.items()}
    if isinstance(value, list):
        return [_numbered(inner, ids, shape) for inner in value]
    return shape.rope_theta if value == "theta" else ids.get(value, value) if isinstance(value, str) else value


def _weights(shape: LlamaConfig, seed: int) -> LlamaWeights:
    """Random ones; in the row of the last token, which nobody says, numbers that a narrower type or a sum would lose."""
    weights = tiny_random(shape, seed)
    hard = torch.tensor([-0.0, 6e-8, 1 + 2**-10, 1 + 2**-7, 1 + 2**-23, 2**-14, -(2**-24), 1.5 * 2**-15])
    weights.embedding[-1, : len(hard)] = hard
    return weights


def _write_weights(folder: Path, shape: LlamaConfig, dtype: torch.dtype, seed: int, *, is_split: bool) -> None:
    state = state_of(_weights(shape, seed))
    stored = {
        name: tensor.to(dtype).clone() for name, tensor in state.items() if name != "lm_head.weight" or not shape.ties_head
    }
    save_file(stored, folder / "model.safetensors", {"format": "pt"})
    if is_split:
        split_in_two(folder)
        index = folder / "model.safetensors.index.json"
        _write(index, {"metadata": {}, **json.loads(index.read_text(encoding="utf-8"))})


def _write(path: Path, data: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(data, ensure_ascii=False), encoding="utf-8")


def _bytes_bpe(known: Vocabulary, splits: Sequence[Any], **more: Any) -> tokenizers.Tokenizer:
    """tokenizer.json as the library of the format writes it."""
    ids = {token: place for place, token in enumerate(known.tokens)}
    made = tokenizers.Tokenizer(models.BPE(vocab=ids, merges=list(known.merges), **more))
    made.pre_tokenizer = pre_tokenizers.Sequence(list(splits))
    made.decoder = decoders.ByteLevel()
    marked = [(token, kind == CONTROL) for token, kind in zip(known.tokens, known.kinds, strict=True) if kind != NORMAL]
    made.add_tokens([AddedToken(token, normalized=False, special=is_special) for token, is_special in marked])
    return made


def _begun(known: Vocabulary, made: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """Every text begins with the token of the begin."""
    begin = processors.TemplateProcessing(
        single=[BOS, "$A"], pair=[BOS, "$A", "$B"], special_tokens=[(BOS, known.tokens.index(BOS))]
    )
    made.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), begin])
    return made


def _in_threes(known: Vocabulary) -> tokenizers.Tokenizer:
    splits = pre_tokenizers.Split(Regex(_THREES), "isolated"), pre_tokenizers.ByteLevel(False, use_regex=False)
    return _begun(known, _bytes_bpe(known, splits, ignore_merges=True))


def _of_gpt2(known: Vocabulary) -> tokenizers.Tokenizer:
    return _bytes_bpe(known, [pre_tokenizers.ByteLevel(add_prefix_space=False)])


def _cut(known: Vocabulary) -> tokenizers.Tokenizer:
    """With what a maker of batches left behind in the file, which is no property of a text."""
    made = _begun(known, _of_gpt2(known))
    made.enable_truncation(8)
    made.enable_padding(length=16, pad_id=known.tokens.index(UNK), pad_token=UNK)
    return made


def _digits_alone(known: Vocabulary) -> tokenizers.Tokenizer:
    made = _bytes_bpe(known, [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)])
    made.normalizer = normalizers.NFC()
    return made


_UNTIED = replace(SHAPE, ties_head=False)
_FOLDERS = (
    Made(
        "a folder in float16 as of old, its head not said to be tied",
        _Folder(
            _in_threes,
            torch.float16,
            _UNTIED,
            config={"rope_theta": "theta", "tie_word_embeddings": None, "torch_dtype": "float16", "eos_token_id": BEGIN},
            settings={"chat_template": TURNS},
            generation={"eos_token_id": [EOT, EOS, UNK]},
        ),
        ends=(EOT, EOS, UNK),
    ),
    Made(
        "a folder in bfloat16 as of late, without an epsilon",
        _Folder(
            _of_gpt2,
            torch.bfloat16,
            config={
                "rope_parameters": {"rope_type": "default", "rope_theta": "theta"},
                "rms_norm_eps": None,
                "dtype": "bfloat16",
            },
            generation={"eos_token_id": EOT},
            template_file=TRIMMED,
        ),
        ends=(EOT,),
    ),
    Made(
        "a folder in float32 of two files that says as little as it may",
        _Folder(
            _cut,
            torch.float32,
            replace(_PLAIN, ties_head=False),
            config={
                **dict.fromkeys(("num_key_value_heads", "head_dim", "rms_norm_eps", "max_position_embeddings", "hidden_act")),
                "tie_word_embeddings": None,
                "eos_token_id": [EOS, EOT],
            },
            settings={"chat_template": JOINED},
            is_split=True,
        ),
        ends=(EOS, EOT),
    ),
    Made(
        "a folder in float16 as of late, its head said not to be tied",
        _Folder(
            _digits_alone,
            torch.float16,
            _UNTIED,
            config={"rope_parameters": {"rope_theta": "theta"}, "eos_token_id": EOT},
            settings={
                "chat_template": [{"name": "tool_use", "template": JOINED}, {"name": "default", "template": TURNS}],
                "add_bos_token": True,
            },
            generation={"eos_token_id": EOS, "temperature": 0.6, "do_sample": True},
        ),
        ends=(EOS,),
    ),
)


@dataclass(frozen=True, slots=True)
class _Gguf:
    """What stands in a GGUF file. ``pre``: the name of the split; ``without``: keys that are left out."""

    kind: gguf.GGMLQuantizationType = F32
    shape: LlamaConfig = SHAPE
    pre: str = ""
    template: str = ""
    flags: Mapping[str, bool] = field(default_factory=dict)
    without: tuple[str, ...] = ()
    has_eot: bool = False
    edit: Callable[[gguf.GGUFWriter], None] | None = None  # the last word before it is written

    def __call__(self, folder: Path, seed: int) -> Path:
        known = vocabulary(seed, has_outside=False)
        chance = random.Random(seed)
        shape = replace(
            self.shape,
            vocab_size=len(known.tokens),
            rope_theta=float(chance.randrange(2_000, 900_000)),
            rms_eps=chance.choice((1e-4, 1e-3, 3e-6)),
            max_positions=384,
        )
        return write_gguf(
            folder / "model.gguf",
            _weights(shape, seed),
            {"": self.kind},
            without=self.without,
            edit=lambda writer: self._add_the_rest(writer, known),
            has_tokenizer=False,
        )

    def _add_the_rest(self, writer: gguf.GGUFWriter, known: Vocabulary) -> None:
        self._add_tokenizer(writer, known)
        if self.edit is not None:
            self.edit(writer)

    def _add_tokenizer(self, writer: gguf.GGUFWriter, known: Vocabulary) -> None:
        writer.add_tokenizer_model("gpt2")
        writer.add_token_list(list(known.tokens))
        writer.add_token_types(list(known.kinds))
        writer.add_token_merges([" ".join(pair) for pair in known.merges])
        named = {"bos": BOS, "eos": EOS, "unknown": UNK} | ({"eot": EOT} if self.has_eot else {})
        for role, name in named.items():
            writer.add_uint32(f"tokenizer.ggml.{role}_token_id", known.tokens.index(name))
        if self.pre:
            writer.add_tokenizer_pre(self.pre)
        for key, value in self.flags.items():
            writer.add_bool(f"tokenizer.ggml.{key}", value)
        if self.template:
            writer.add_chat_template(self.template)


_TYPES = gguf.GGMLQuantizationType
_GGUFS = (
    Made(
        "a GGUF file in F16 with a head, a begin and an end of turns",
        _Gguf(_TYPES.F16, _UNTIED, "llama-bpe", TURNS, {"add_bos_token": True}, has_eot=True),
        ends=(EOS, EOT),
    ),
    Made(
        "a GGUF file in Q8_0, tied, whose turns are joined",
        _Gguf(_TYPES.Q8_0, pre="smollm", template=JOINED, flags={"add_bos_token": False, "add_space_prefix": False}),
        ends=(EOS,),
    ),
    Made(
        "a GGUF file in F32 that begins texts with a space",
        _Gguf(
            shape=replace(_PLAIN, ties_head=False),
            flags={"add_space_prefix": True, "add_bos_token": False},
            without=("llama.attention.key_length", "llama.rope.freq_base", "llama.rope.dimension_count"),
        ),
        ends=(EOS,),
        has_chat=False,
        begins=" ",
    ),
    Made(
        "a GGUF file in BF16 whose template takes white space off",
        _Gguf(_TYPES.BF16, pre="llama3", template=TRIMMED, flags={"add_bos_token": True}),
        ends=(EOS,),
    ),
)
MODELS = (*_FOLDERS, *_GGUFS)
FOLDER = _Folder(_of_gpt2, torch.float32, _UNTIED, config={"rope_theta": "theta", "eos_token_id": EOT})  # sound, plain ones
GGUF = _Gguf(pre="smollm", flags={"add_bos_token": False})
