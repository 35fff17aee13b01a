"""A folder with config.json and safetensors, in the names that Llamas have on the Hugging Face hub: read, and written.

Owns: those names, and what of config.json is accepted. Never: a tokenizer, or another format.

Files are mapped, so that a model in the wanted type costs no copy; each tensor is looked through once for what is no number.
Format: https://huggingface.co/docs/safetensors
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from engine_under_test.errors import BadInput, ConfigError
from engine_under_test.model.json_file import json_object
from engine_under_test.model.weights import LayerWeights, LlamaConfig, LlamaWeights

WEIGHTS, INDEX, CONFIG = "model.safetensors", "model.safetensors.index.json", "config.json"
_FLOATS = {torch.float32, torch.float16, torch.bfloat16, torch.float64}
_LAYER_NAMES = {
    "attention_norm": "input_layernorm", "q": "self_attn.q_proj", "k": "self_attn.k_proj", "v": "self_attn.v_proj",
    "o": "self_attn.o_proj", "mlp_norm": "post_attention_layernorm", "gate": "mlp.gate_proj", "up": "mlp.up_proj",
    "down": "mlp.down_proj",
}  # fmt: skip
_EMBEDDING, _FINAL_NORM, _HEAD = "model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"


def llama_of(folder: Path, files: tuple[Path, ...], dtype: torch.dtype) -> LlamaWeights:
    """The Llama in these files of the folder; BadInput if they are damaged, incomplete or of another architecture."""
    config = llama_config(folder / CONFIG)
    tensors = dict(pair for file in files for pair in _tensors(file))
    _refuse_foreign_tensors(folder, tensors, config)

    def take(name: str, shape: tuple[int, ...]) -> torch.Tensor:
        tensor = tensors.get(name)
        if tensor is None:
            raise BadInput(f"a Llama must have a tensor {name}, but {folder} has none; fetch all of its files again")
        if tuple(tensor.shape) != shape or tensor.dtype not in _FLOATS:
            raise BadInput(
                f"{name} must be floats of shape {list(shape)} as config.json says, found {tensor.dtype} {list(tensor.shape)} "
                f"in {folder}; use files that belong together"
            )
        tensor = tensor.to(dtype)
        if not all(bound.isfinite() for bound in tensor.aminmax()):
            raise BadInput(
                f"weights must be finite as {str(dtype).removeprefix('torch.')}, but {name} in {folder} has infinities or NaN: "
                "fetch the file again, or load it in a wider type"
            )
        return tensor

    hidden = config.hidden_size
    embedding = take(_EMBEDDING, (config.vocab_size, hidden))
    layers = tuple(
        LayerWeights(**{name: take(_layer_name(index, name), shape) for name, shape in _layer_shapes(config).items()})
        for index in range(config.num_layers)
    )
    head = embedding if config.ties_head else take(_HEAD, (config.vocab_size, hidden))
    return LlamaWeights(config, embedding, layers, take(_FINAL_NORM, (hidden,)), head)


def files_of(folder: Path) -> tuple[Path, ...]:
    """The weight files of a folder: the one, or all that the index names."""
    if (folder / WEIGHTS).is_file():
        return (folder / WEIGHTS,)
    if not (folder / INDEX).is_file():
        raise BadInput(
            f"a model folder must hold {WEIGHTS} or {INDEX}, but {folder} has neither; name the folder with {CONFIG} in it"
        )
    names = _json(folder / INDEX).get("weight_map")
    if not isinstance(names, dict) or not names or not all(isinstance(name, str) for name in names.values()):
        raise BadInput(f"an index must map tensors to files under weight_map, but {folder / INDEX} does not; fetch it again")
    if strange := [name for name in names.values() if Path(name).name != name]:
        raise BadInput(f"an index must name files of its own folder, found {strange[0]!r} in {folder / INDEX}; do not use it")
    return tuple(folder / name for name in sorted(set(names.values())))


def llama_config(path: Path) -> LlamaConfig:
    """The shape that a config.json states; BadInput for everything that this engine would compute wrongly."""
    data = _json(path)

    def need(key: str, kind: type[Any], default: Any = None) -> Any:
        value = data.get(key)
        value = default if value is None else value
        if type(value) is not kind and not (kind is float and type(value) is int):
            raise BadInput(f"{key} in config.json must be of type {kind.__name__}, found {value!r} in {path}; fetch it again")
        return kind(value)

    if (architecture := data.get("model_type")) != "llama":
        raise BadInput(f"the architecture of a model must be llama, found {architecture!r} in {path}; use a Llama")
    for key, plain in {"hidden_act": "silu", "attention_bias": False, "mlp_bias": False}.items():
        if data.get(key, plain) != plain:
            raise BadInput(f"{key} of a Llama must be {plain!r}, found {data[key]!r} in {path}; use another model")
    heads, hidden = need("num_attention_heads", int), need("hidden_size", int)
    try:
        return LlamaConfig(
            vocab_size=need("vocab_size", int),
            hidden_size=hidden,
            num_layers=need("num_hidden_layers", int),
            num_heads=heads,
            num_kv_heads=need("num_key_value_heads", int, heads),
            head_size=need("head_dim", int, hidden // max(heads, 1)),
            intermediate_size=need("intermediate_size", int),
            rope_theta=_rope_theta(data, path),
            rms_eps=need("rms_norm_eps", float, 1e-6),
            max_positions=need("max_position_embeddings", int, 2048),
            ties_head=need("tie_word_embeddings", bool, False),
        )
    except ConfigError as error:
        raise BadInput(f"{error} ({path})") from error


def save_llama(weights: LlamaWeights, folder: Path) -> None:
    """Writes config.json and one file of weights, which `transformers` reads too. Not atomic: hand in a temporary folder."""
    config = weights.config
    data = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_size,
        "intermediate_size": config.intermediate_size,
        "hidden_act": "silu",
        "rope_theta": config.rope_theta,
        "rms_norm_eps": config.rms_eps,
        "max_position_embeddings": config.max_positions,
        "tie_word_embeddings": config.ties_head,
        "torch_dtype": str(weights.embedding.dtype).removeprefix("torch."),
    }
    tensors = {_EMBEDDING: weights.embedding, _FINAL_NORM: weights.final_norm}
    tensors |= {} if config.ties_head else {_HEAD: weights.head}
    for index, layer in enumerate(weights.layers):
        tensors |= {_layer_name(index, name): getattr(layer, name) for name in _LAYER_NAMES}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / CONFIG).write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")
    save_tensors(tensors, folder / WEIGHTS)
    (folder / WEIGHTS).chmod((folder / CONFIG).stat().st_mode)  # the library lets only its owner read it


def save_tensors(tensors: Mapping[str, torch.Tensor], file: Path) -> None:
    """Raises OSError for what the disk refuses."""
    try:
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, file, {"format": "pt"})
    except SafetensorError as error:  # the library's word for it
        full = os.strerror(errno.ENOSPC)
        number, said = (errno.ENOSPC, full) if full in str(error) else (errno.EIO, str(error))
        raise OSError(number, said, str(file)) from error


def _tensors(file: Path) -> Iterator[tuple[str, torch.Tensor]]:
    try:
        with safe_open(file, framework="pt") as opened:
            for name in opened.keys():  # noqa: SIM118 # not a dict: it can not be iterated
                yield name, opened.get_tensor(name)
    except (SafetensorError, OSError, ValueError) as error:
        said = str(error).strip().splitlines()[0]
        raise BadInput(f"a safetensors file must be whole, but {file} is not ({said}): fetch it again") from error


def _refuse_foreign_tensors(folder: Path, names: Mapping[str, object], config: LlamaConfig) -> None:
    """A tensor that nothing would read means that the result would be wrong; tables of frequencies are derived."""
    known = {_EMBEDDING, _FINAL_NORM, _HEAD}
    known |= {_layer_name(index, name) for index in range(config.num_layers) for name in _LAYER_NAMES}
    if foreign := sorted(name for name in set(names) - known if not name.endswith("rotary_emb.inv_freq")):
        raise BadInput(
            f"a Llama must consist of its known tensors, found {foreign[0]!r}"
            f"{f' and {len(foreign) - 1} more' if len(foreign) > 1 else ''} in {folder}; use a model without biases or experts"
        )


def _layer_name(index: int, name: str) -> str:
    return f"model.layers.{index}.{_LAYER_NAMES[name]}.weight"


def _layer_shapes(config: LlamaConfig) -> dict[str, tuple[int, ...]]:
    hidden, inner = config.hidden_size, config.intermediate_size
    queries, keys = config.num_heads * config.head_size, config.num_kv_heads * config.head_size
    return {
        "attention_norm": (hidden,), "q": (queries, hidden), "k": (keys, hidden), "v": (keys, hidden), "o": (hidden, queries),
        "mlp_norm": (hidden,), "gate": (inner, hidden), "up": (inner, hidden), "down": (hidden, inner),
    }  # fmt: skip


def _rope_theta(data: Mapping[str, Any], path: Path) -> float:
    """Older files say `rope_theta` and `rope_scaling`, newer ones `rope_parameters`."""
    parameters = data.get("rope_parameters") or data.get("rope_scaling") or {}
    kind = parameters.get("rope_type", parameters.get("type", "default")) if isinstance(parameters, dict) else parameters
    if kind != "default":
        raise BadInput(f"rotary positions must not be scaled, found {kind!r} in {path}; use another model")
    theta = parameters.get("rope_theta", data.get("rope_theta", 10000.0))
    if type(theta) not in {int, float}:
        raise BadInput(f"rope_theta in config.json must be a number, found {theta!r} in {path}; fetch it again")
    return float(theta)


def _json(path: Path) -> dict[str, Any]:
    return json_object(path, f"a model folder must hold {path.name}", "name another folder")
