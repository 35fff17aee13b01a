"""Sound model files of which one thing is changed that a file may declare, so that it means another model, or none.

Owns the changes, by kind: numbers and names of config.json and of a GGUF file, tensors more, fewer, of another type or with
what is no number, ends that are cut off. Never a reader: `made_models.py` demands a refusal, or what `transformers` computes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import gguf
import numpy as np
import torch
from safetensors.torch import load_file, save_file

from differential.made_files import FOLDER, GGUF

Tensors = dict[str, torch.Tensor]
_Q, _GATE, _HEAD = "model.layers.0.self_attn.q_proj", "model.layers.0.mlp.gate_proj", "lm_head.weight"


@dataclass(frozen=True, slots=True)
class Strange:
    """``may_load``: what `transformers` makes of it is right as well, if the engine computes the same."""

    name: str
    write: Callable[[Path, int], Path]
    may_load: bool = False


@dataclass(frozen=True, slots=True)
class _Folder:
    """``config``: keys that are changed, None: left out. ``edit``: what is done to the tensors. ``keeps``: of the file, from
    its begin; 1: all of it."""

    config: Mapping[str, Any] = field(default_factory=dict)
    edit: Callable[[Tensors], None] | None = None
    keeps: float = 1.0

    def __call__(self, folder: Path, seed: int) -> Path:
        FOLDER(folder, seed)
        said = folder / "config.json"
        config = {**json.loads(said.read_text(encoding="utf-8")), **self.config}
        said.write_text(json.dumps({key: value for key, value in config.items() if value is not None}), encoding="utf-8")
        file = folder / "model.safetensors"
        if self.edit is not None:
            tensors = {name: tensor.clone() for name, tensor in load_file(file).items()}
            self.edit(tensors)
            save_file(tensors, file, {"format": "pt"})
        _cut(file, self.keeps)
        return folder


@dataclass(frozen=True, slots=True)
class _Gguf:
    """``edit`` sees the writer before it writes; ``pre``: the name of the split."""

    edit: Callable[[gguf.GGUFWriter], None] | None = None
    pre: str = "smollm"
    keeps: float = 1.0

    def __call__(self, folder: Path, seed: int) -> Path:
        path = replace(GGUF, pre=self.pre, edit=self.edit)(folder, seed)
        _cut(path, self.keeps)
        return path


def _cut(file: Path, keeps: float) -> None:
    if keeps < 1:
        data = file.read_bytes()
        file.write_bytes(data[: int(len(data) * keeps)])


def _rope(kind: str, more: Mapping[str, float], *, older: bool = False) -> _Folder:
    said = {("type" if older else "rope_type"): kind, **more}
    if older:
        return _Folder({"rope_scaling": said, "rope_theta": 10_000.0, "rope_parameters": None})
    return _Folder({"rope_parameters": {"rope_theta": 10_000.0, **said}})


def _biased(*names: str) -> Callable[[Tensors], None]:
    def edit(tensors: Tensors) -> None:
        for name in names:
            tensors[f"{name}.bias"] = torch.full((len(tensors[f"{name}.weight"]),), 0.5)

    return edit


def _spoil(value: float, name: str = f"{_Q}.weight") -> Callable[[Tensors], None]:
    def edit(tensors: Tensors) -> None:
        tensors[name].view(-1)[3] = value

    return edit


def _as(dtype: torch.dtype) -> Callable[[Tensors], None]:
    def edit(tensors: Tensors) -> None:
        tensors[f"{_Q}.weight"] = tensors[f"{_Q}.weight"].to(dtype)

    return edit


def _without(name: str) -> Callable[[Tensors], None]:
    def edit(tensors: Tensors) -> None:
        del tensors[name]

    return edit


def _one_row_more(tensors: Tensors) -> None:
    tensors[f"{_Q}.weight"] = torch.cat([tensors[f"{_Q}.weight"], tensors[f"{_Q}.weight"][:1]])


def _string(key: str, value: str) -> _Gguf:
    return _Gguf(lambda writer: writer.add_string(key, value))


def _number(key: str, value: float) -> _Gguf:
    return _Gguf(lambda writer: writer.add_float32(key, value))


def _count(key: str, value: int) -> _Gguf:
    return _Gguf(lambda writer: _replaced(writer, key, value))


def _replaced(writer: gguf.GGUFWriter, key: str, value: int) -> None:
    writer.kv_data[0].pop(key, None)
    writer.add_uint32(key, value)


def _tensor(name: str, size: int) -> _Gguf:
    return _Gguf(lambda writer: writer.add_tensor(name, np.full(size, 0.5, dtype=np.float32)))


_SCALED: Final = {
    "llama3": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32},
    "linear": {"factor": 4.0},
    "dynamic": {"factor": 4.0, "original_max_position_embeddings": 16},
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 32},
}
_ACTIVATIONS: Final = ("gelu", "gelu_pytorch_tanh", "relu", "quick_gelu")
STRANGE: Final = (
    *(Strange(f"rotary positions of type {kind}", _rope(kind, more), True) for kind, more in _SCALED.items()),
    Strange("rotary positions scaled as of old", _rope("linear", {"factor": 4.0}, older=True), True),
    *(Strange(f"the activation {name}", _Folder({"hidden_act": name}), True) for name in _ACTIVATIONS),
    *(Strange(f"of type {kind}", _Folder({"model_type": kind})) for kind in ("mistral", "qwen2", "gemma", "granite")),
    Strange("biases of attention, said", _Folder({"attention_bias": True}, _biased(_Q)), True),
    Strange("biases of attention, not said", _Folder(edit=_biased(_Q))),
    Strange("biases of the inner layer, said", _Folder({"mlp_bias": True}, _biased(_GATE)), True),
    Strange("biases of the inner layer, not said", _Folder(edit=_biased(_GATE))),
    Strange("a head more than its tensors have", _Folder({"num_attention_heads": 5, "hidden_size": 40})),
    Strange("fewer heads of keys", _Folder({"num_key_value_heads": 1})),
    Strange("heads of another size", _Folder({"head_dim": 8})),
    Strange("a layer more than there is", _Folder({"num_hidden_layers": 2})),
    Strange("another size of the inner layer", _Folder({"intermediate_size": 32})),
    Strange("another vocabulary", _Folder({"vocab_size": 0x180})),
    Strange("no head, though it is not tied", _Folder(edit=_without(_HEAD))),
    Strange("a tensor of another shape", _Folder(edit=_one_row_more)),
    Strange("a tensor of whole numbers", _Folder(edit=_as(torch.int8))),
    Strange("a tensor of eight bits", _Folder(edit=_as(torch.float8_e4m3fn))),
    Strange("a weight that is no number", _Folder(edit=_spoil(float("nan")))),
    Strange("a weight without end", _Folder(edit=_spoil(float("-inf"), _HEAD))),
    *(Strange(f"the first {keeps:.0%} of safetensors", _Folder(keeps=keeps)) for keeps in (0.01, 0.5, 0.999)),
    *(Strange(f"GGUF, scaled by {kind}", _string("llama.rope.scaling.type", kind)) for kind in ("linear", "yarn", "longrope")),
    Strange("GGUF, scaled by a factor without a type", _number("llama.rope.scaling.factor", 4.0)),
    Strange("GGUF, scaled as of old", _number("llama.rope.scale_linear", 4.0)),
    Strange("GGUF, with frequencies of its own", _tensor("rope_freqs.weight", 8)),
    Strange("GGUF, biases of attention", _tensor("blk.0.attn_q.bias", 64)),
    Strange("GGUF, norms of queries", _tensor("blk.0.attn_q_norm.weight", 16)),
    Strange("GGUF, half of a head turned", _count("llama.rope.dimension_count", 8)),
    Strange("GGUF, values of another size", _count("llama.attention.value_length", 8)),
    Strange("GGUF, experts", _count("llama.expert_count", 4)),
    Strange("GGUF, another split of texts", _Gguf(pre="deepseek-llm")),
    Strange("GGUF, a scale of attention", _number("llama.attention.scale", 0.5)),
    Strange("GGUF, a scale of logits", _number("llama.logit_scale", 0.5)),
    Strange("GGUF, another architecture", _string("general.architecture", "qwen2")),
    *(Strange(f"the first {keeps:.0%} of GGUF", _Gguf(keeps=keeps)) for keeps in (0.1, 0.5, 0.99)),
)
