"""Adapters made at random and written as PEFT writes them, by this project's own hand: what a reader must make of them.

Owns the folders (adapter_config.json, a safetensors file put together byte by byte) and what they mean: the scale by its two
definitions, lora_alpha / r (Hu et al. 2021, section 4.1) and, with use_rslora, lora_alpha / sqrt(r) (Kalajdzievski,
arXiv 2312.03732). Never: the engine's writer, its reader, or its idea of a scale.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from math import sqrt
from pathlib import Path
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from engine_under_test.model.weights import LlamaConfig

Floats = npt.NDArray[np.float32]
_LONG = {
    "q": "self_attn.q_proj", "k": "self_attn.k_proj", "v": "self_attn.v_proj", "o": "self_attn.o_proj",
    "gate": "mlp.gate_proj", "up": "mlp.up_proj", "down": "mlp.down_proj",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class MadeAdapter:
    """``layers``: by module the factors a [rank, in] and b [out, rank]."""

    rank: int
    alpha: float
    is_stabilised: bool
    layers: tuple[Mapping[str, tuple[Floats, Floats]], ...]

    @property
    def scale(self) -> float:
        return self.alpha / (sqrt(self.rank) if self.is_stabilised else self.rank)


def make_adapter(
    shape: LlamaConfig, seed: int, *, rank: int, alpha: float, is_stabilised: bool, modules: tuple[str, ...]
) -> MadeAdapter:
    """What it adds to a product is about as large as the product of a random matrix, whatever its scale."""
    rng = np.random.default_rng(seed)
    size = MadeAdapter(rank, alpha, is_stabilised, ()).scale
    queries, keys = shape.num_heads * shape.head_size, shape.num_kv_heads * shape.head_size
    hidden, inner = shape.hidden_size, shape.intermediate_size
    shapes = {
        "q": (queries, hidden), "k": (keys, hidden), "v": (keys, hidden), "o": (hidden, queries),
        "gate": (inner, hidden), "up": (inner, hidden), "down": (hidden, inner),
    }  # fmt: skip

    def factors(out: int, width: int) -> tuple[Floats, Floats]:
        a = rng.standard_normal((rank, width)) * width**-0.5
        b = rng.standard_normal((out, rank)) * (rank**-0.5 / size)
        return a.astype(np.float32), b.astype(np.float32)

    layers = tuple({module: factors(*shapes[module]) for module in modules} for _ in range(shape.num_layers))
    return MadeAdapter(rank, alpha, is_stabilised, layers)


def write_adapter(
    made: MadeAdapter,
    folder: Path,
    changes: Mapping[str, object] = MappingProxyType({}),
    more: Mapping[str, Floats] = MappingProxyType({}),
) -> None:
    """The two files of a folder. ``changes``: of its settings; ``more``: tensors by the last part of their names, for every
    matrix that is changed where it begins with "lora", else by their whole names."""
    settings: dict[str, object] = {
        "alpha_pattern": {}, "bias": "none", "fan_in_fan_out": False, "inference_mode": True, "init_lora_weights": True,
        "lora_alpha": int(made.alpha) if made.alpha == int(made.alpha) else made.alpha, "lora_dropout": 0.05,
        "modules_to_save": None,
        "peft_type": "LORA", "r": made.rank, "rank_pattern": {}, "task_type": "CAUSAL_LM", "use_dora": False,
        "target_modules": [_LONG[module].partition(".")[2] for module in made.layers[0]],
        **({"use_rslora": True} if made.is_stabilised else {}),
        **changes,
    }  # fmt: skip
    (folder / "adapter_config.json").write_text(json.dumps(settings), encoding="utf-8")
    tensors: dict[str, Floats] = {}
    for number, modules in enumerate(made.layers):
        for module, (a, b) in modules.items():
            name = f"base_model.model.model.layers.{number}.{_LONG[module]}"
            tensors |= {f"{name}.lora_A.weight": a, f"{name}.lora_B.weight": b}
            tensors |= {f"{name}.{last}": np.ones(len(b), np.float32) for last in more if last.startswith("lora")}
    tensors |= {name: tensor for name, tensor in more.items() if not name.startswith("lora")}
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    data = b""
    for name, tensor in tensors.items():
        part = tensor.astype("<f4").tobytes()
        header[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": [len(data), len(data) + len(part)]}
        data += part
    said = json.dumps(header).encode()
    said += b" " * (-len(said) % 8)
    (folder / "adapter_model.safetensors").write_bytes(struct.pack("<Q", len(said)) + said + data)
