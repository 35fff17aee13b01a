"""LoRA adapters (Hu et al. 2021) as PEFT writes them: read, checked against a Llama, written, and made at random for tests.

Owns: the names in such a folder and what of adapter_config.json is accepted. Never: where an adapter lies on a device, or what
is multiplied with it (`execution/adapter_slots.py`).

Where an adapter changes a matrix ``w`` [out, in], the product ``x @ w.T`` becomes ``x @ w.T + scale * (x @ a.T) @ b.T`` with
``a`` [rank, in] and ``b`` [out, rank]. Format: https://huggingface.co/docs/peft/developer_guides/checkpoint
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open

from engine_under_test.errors import BadInput
from engine_under_test.model.json_file import json_object
from engine_under_test.model.safetensors_file import save_tensors
from engine_under_test.model.weights import LlamaConfig

ADAPTER_CONFIG, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
MODULES = ("q", "k", "v", "o", "gate", "up", "down")  # columns of `LayerWeights`
_PEFT_NAMES = {
    "self_attn.q_proj": "q", "self_attn.k_proj": "k", "self_attn.v_proj": "v", "self_attn.o_proj": "o",
    "mlp.gate_proj": "gate", "mlp.up_proj": "up", "mlp.down_proj": "down",
}  # fmt: skip
_SHORT_NAMES = {name.rpartition(".")[2]: module for name, module in _PEFT_NAMES.items()}
_TENSOR = re.compile(r"base_model\.model\.model\.layers\.(\d+)\.([\w.]+)\.lora_([AB])\.weight")
_FLOATS = {torch.float32, torch.float16, torch.bfloat16, torch.float64}
_PLAIN: dict[str, tuple[Any, ...]] = {  # with another value, the product would be another one
    "peft_type": ("LORA",),
    "bias": ("none",),
    "use_dora": (False,),
    "fan_in_fan_out": (False,),
    "modules_to_save": ((), None),
    "rank_pattern": ((), None),
    "alpha_pattern": ((), None),
    "lora_bias": (False,),
    "layer_replication": ((), None),
    "trainable_token_indices": (None, ()),
    "target_parameters": (None, ()),
    "alora_invocation_tokens": (None, ()),
    "use_qalora": (False,),
    # Others begin with another model: what they were trained on is not its weights, but these without a part of them.
    "init_lora_weights": (True, False, None, "gaussian", "orthogonal", "eva"),
}
_WITHOUT_EFFECT = frozenset((  # on a product: where it came from, how it was trained, which tensors there are
    "r", "lora_alpha", "use_rslora", "target_modules", "exclude_modules", "layers_to_transform", "layers_pattern", "task_type",
    "base_model_name_or_path", "revision", "auto_mapping", "peft_version", "inference_mode", "lora_dropout", "runtime_config",
    "eva_config", "corda_config", "loftq_config", "lora_ga_config", "megatron_config", "megatron_core", "qalora_group_size",
    "ensure_weight_tying",
))  # fmt: skip


class LoraModule(NamedTuple):
    """What is added to one matrix: ``a`` [rank, in], ``b`` [out, rank]."""

    a: torch.Tensor
    b: torch.Tensor


@dataclass(frozen=True, slots=True)
class LoraWeights:
    """An adapter for one Llama: by layer, the modules that it changes (names of `MODULES`)."""

    rank: int
    scale: float
    layers: tuple[Mapping[str, LoraModule], ...]


def module_shapes(config: LlamaConfig) -> dict[str, tuple[int, int]]:
    """[out, in] of each matrix that an adapter may change."""
    hidden, inner = config.hidden_size, config.intermediate_size
    queries, keys = config.num_heads * config.head_size, config.num_kv_heads * config.head_size
    return {
        "q": (queries, hidden), "k": (keys, hidden), "v": (keys, hidden), "o": (hidden, queries),
        "gate": (inner, hidden), "up": (inner, hidden), "down": (hidden, inner),
    }  # fmt: skip


def load_lora(folder: Path, config: LlamaConfig, dtype: torch.dtype = torch.float32) -> LoraWeights:
    """The adapter in a folder that PEFT wrote, for a Llama of this shape. BadInput, in one sentence, for anything else."""
    settings = _settings(folder / ADAPTER_CONFIG)
    rank, scale = _rank_and_scale(settings, folder)
    shapes = module_shapes(config)
    found: list[dict[str, dict[str, torch.Tensor]]] = [{} for _ in range(config.num_layers)]
    for name, tensor in _tensors(folder / ADAPTER_WEIGHTS).items():
        layer, module, side = _place(name, config, folder)
        out, width = shapes[module]
        expected = (rank, width) if side == "A" else (out, rank)
        if tuple(tensor.shape) != expected or tensor.dtype not in _FLOATS:
            raise BadInput(
                f"{name} must be floats of shape {list(expected)} for this model and rank {rank}, found {tensor.dtype} "
                f"{list(tensor.shape)} in {folder}; use an adapter that was made for this model"
            )
        if not tensor.isfinite().all():
            raise BadInput(f"an adapter must consist of finite numbers, but {name} in {folder} does not; train it again")
        found[layer].setdefault(module, {})[side] = tensor.to(dtype)
    for layer, modules in enumerate(found):
        for module, sides in modules.items():
            if len(sides) < 2:
                raise BadInput(
                    f"an adapter must have both factors of a matrix, found only lora_{next(iter(sides))} of {module} in layer "
                    f"{layer} of {folder}; save it again"
                )
    _require_targets(settings, {module for modules in found for module in modules}, folder)
    layers = tuple({module: LoraModule(sides["A"], sides["B"]) for module, sides in modules.items()} for modules in found)
    return LoraWeights(rank, scale, layers)


def save_lora(lora: LoraWeights, folder: Path) -> None:
    """Writes a folder that PEFT reads too. Not atomic: hand in a temporary folder."""
    modules = {module for layer in lora.layers for module in layer}
    long_names = {module: name for name, module in _PEFT_NAMES.items()}
    settings = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": lora.rank,
        "lora_alpha": lora.scale * lora.rank,
        "target_modules": sorted(long_names[module].rpartition(".")[2] for module in modules),
        "bias": "none",
        "use_rslora": False,
    }
    tensors = {
        f"base_model.model.model.layers.{number}.{long_names[module]}.lora_{side}.weight": tensor
        for number, layer in enumerate(lora.layers)
        for module, factors in layer.items()
        for side, tensor in zip("AB", factors, strict=True)
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / ADAPTER_CONFIG).write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
    save_tensors(tensors, folder / ADAPTER_WEIGHTS)
    (folder / ADAPTER_WEIGHTS).chmod((folder / ADAPTER_CONFIG).stat().st_mode)  # the library lets only its owner read it


def random_lora(
    config: LlamaConfig,
    seed: int,
    *,
    rank: int = 4,
    scale: float = 2.0,
    strength: float = 1.0,
    modules: Iterable[str] = MODULES,
    dtype: torch.dtype = torch.float32,
) -> LoraWeights:
    """An adapter that changes each of `modules` in every layer: a pure function of its arguments.

    ``strength`` 1: what it adds to a product is about as large as the product of a random matrix.
    """
    generator = torch.Generator().manual_seed(seed)
    shapes, wanted = module_shapes(config), tuple(modules)

    def normal(*shape: int, size: float) -> torch.Tensor:
        return (torch.randn(*shape, generator=generator, dtype=torch.float64) * size).to(dtype)

    def factors(out: int, width: int) -> LoraModule:
        return LoraModule(normal(rank, width, size=width**-0.5), normal(out, rank, size=strength / scale * rank**-0.5))

    layers = tuple({module: factors(*shapes[module]) for module in wanted} for _ in range(config.num_layers))
    return LoraWeights(rank, scale, layers)


def _settings(path: Path) -> dict[str, Any]:
    rule = f"an adapter must be a folder with {path.name} and {ADAPTER_WEIGHTS}"
    data = json_object(path, rule, "name the folder that PEFT saved", again="save the adapter again")
    for key, good in _PLAIN.items():
        value = data.get(key, good[0])
        if (tuple(value) if isinstance(value, (list, dict)) else value) not in good:
            raise BadInput(f"{key} of an adapter must be {good[0]!r}, found {value!r} in {path}; use a plain LoRA adapter")
    for key in data.keys() - _PLAIN.keys() - _WITHOUT_EFFECT:
        if data[key]:
            raise BadInput(
                f"{key} of an adapter is not known here, so must be off, found {data[key]!r} in {path}; leave it out"
            )
    return data


def _rank_and_scale(settings: Mapping[str, Any], folder: Path) -> tuple[int, float]:
    rank, alpha, is_stabilised = settings.get("r"), settings.get("lora_alpha"), settings.get("use_rslora", False)
    if type(rank) is not int or rank < 1:
        raise BadInput(f"r of an adapter must be an integer of at least 1, found {rank!r} in {folder}; save it again")
    if not isinstance(alpha, int | float) or isinstance(alpha, bool) or not math.isfinite(alpha):
        raise BadInput(f"lora_alpha of an adapter must be a finite number, found {alpha!r} in {folder}; save it again")
    if type(is_stabilised) is not bool:
        raise BadInput(f"use_rslora must be true or false, found {is_stabilised!r} in {folder}; save it again")
    return rank, float(alpha) / (math.sqrt(rank) if is_stabilised else rank)


def _tensors(file: Path) -> dict[str, torch.Tensor]:
    try:
        with safe_open(file, framework="pt") as opened:
            return {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118 # not a dict: no iteration
    except (SafetensorError, OSError, ValueError) as error:
        said = str(error).strip().splitlines()[0]
        raise BadInput(f"an adapter's safetensors file must be whole, but {file} is not ({said}): save it again") from error


def _place(name: str, config: LlamaConfig, folder: Path) -> tuple[int, str, str]:
    """Layer, module and side of a tensor."""
    match = _TENSOR.fullmatch(name)
    module = _PEFT_NAMES.get(match[2]) if match else None
    if match is None or module is None or int(match[1]) >= config.num_layers:
        raise BadInput(
            f"an adapter must consist of lora_A and lora_B of q, k, v, o, gate, up and down in the model's {config.num_layers} "
            f"layers, found {name!r} in {folder}; use an adapter that was made for this model, without other tensors"
        )
    return int(match[1]), module, match[3]


def _require_targets(settings: Mapping[str, Any], found: set[str], folder: Path) -> None:
    """What the configuration names and what there is are the same modules; a pattern says nothing that can be compared."""
    if not found:
        raise BadInput(f"an adapter must change at least one matrix, but {folder} holds no tensor; save it again")
    targets = settings.get("target_modules")
    if not isinstance(targets, list):
        return
    named = {_SHORT_NAMES.get(str(target).rpartition(".")[2], str(target)) for target in targets}
    if named != found:
        raise BadInput(
            f"the tensors of an adapter must be those of its target_modules, found {', '.join(sorted(found))} for "
            f"{', '.join(sorted(named))} in {folder}; save it again"
        )
