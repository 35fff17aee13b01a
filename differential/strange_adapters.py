"""Folders of adapters whose settings change what is multiplied: each is read as PEFT means it, or refused; none is taken for a
plain one.

Owns the settings of an adapter_config.json that matter, with values under which the product is another one, what that product
is where a scale and two factors can say it, and the judgement. Beside them, settings that change nothing, under which a folder
must be read. Never: the engine's list of what it reads. Settings: https://huggingface.co/docs/peft/package_reference/lora
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from differential.made_adapters import Floats, MadeAdapter, make_adapter, write_adapter
from engine_under_test.errors import BadInput
from engine_under_test.model.lora import LoraWeights, load_lora
from engine_under_test.model.weights import LlamaConfig
from properties.verdict import Violation

_SHAPE = LlamaConfig(31, 8, 2, 2, 2, 4, 8, ties_head=False)  # every matrix is square: a transposed one has its shape
FLOORS: Mapping[str, int] = {"settings refused or read as meant": 20, "settings without effect": 10}
Scales = Mapping[tuple[int, str], float]
_Alphas = Callable[[int, str], float | None]


@dataclass(frozen=True, slots=True)
class Strange:
    """``alpha``: that of a matrix, None where it is the folder's; ``more``: tensors beside the factors (see `write_adapter`).
    ``is_plain``: the product is that of factors and scales; otherwise nothing that is read here can mean it."""

    settings: Mapping[str, Any]
    is_plain: bool = False
    alpha: _Alphas = lambda _layer, _module: None
    more: Mapping[str, Floats] = field(default_factory=dict)


def _strange(chance: random.Random, rank: int) -> Iterator[Strange]:
    """One folder of each kind that is no plain one."""
    other, some = float(chance.choice((3, 7, 12))), np.ones((31, 8), np.float32)
    yield Strange({"alpha_pattern": {"q_proj": other}}, True, lambda _, module: other if module == "q" else None)
    first = {"layers.0.self_attn.v_proj": other}
    yield Strange({"alpha_pattern": first}, True, lambda layer, module: other if (layer, module) == (0, "v") else None)
    yield Strange({"alpha_pattern": {".*_proj": other}}, True, lambda _layer, _module: other)
    yield Strange({"rank_pattern": {"q_proj": rank + 1}})
    yield Strange({"use_dora": True}, more={"lora_magnitude_vector": some})
    yield Strange({"use_dora": True})
    yield Strange({"fan_in_fan_out": True})  # factors of a model that keeps its matrices the other way round
    yield Strange({"bias": chance.choice(("all", "lora_only"))})
    yield Strange({"lora_bias": True}, more={"lora_B.bias": some})
    yield Strange({"lora_bias": True})
    yield Strange({"modules_to_save": ["lm_head"]}, more={"base_model.model.lm_head.weight": some})
    yield Strange({"modules_to_save": ["lm_head"]})
    yield Strange({"layer_replication": [[0, 2], [1, 2]]})
    yield Strange({"trainable_token_indices": [1, 5]})
    yield Strange({"trainable_token_indices": {"embed_tokens": [1, 5]}})
    yield Strange({"target_parameters": ["mlp.down_proj.weight"]})
    yield Strange({"alora_invocation_tokens": [3, 4]})  # begins to act behind these tokens only
    yield Strange({"use_qalora": True})  # its inputs are averaged in groups
    yield Strange({"peft_type": chance.choice(("ADALORA", "IA3", "VERA", "LOHA"))})
    # The model that these are added to is another one: its weights less what the factors began with.
    yield Strange({"init_lora_weights": chance.choice(("pissa", "pissa_niter_4", "olora", "corda", "loftq"))})
    yield Strange({"arrow_config": {"top_k": 2}})
    yield Strange({f"use_{chance.choice(('bd', 'mo', 'half', 'x'))}lora": True})  # of a later version


def _harmless(chance: random.Random) -> Iterator[Strange]:
    """Settings of training and of bookkeeping."""
    choices: tuple[tuple[str, tuple[Any, ...]], ...] = (
        ("lora_dropout", (0.0, 0.3)),
        ("base_model_name_or_path", (None, "someone/a-model")),
        ("revision", (None, "main")),
        ("inference_mode", (True, False)),
        ("task_type", (None, "CAUSAL_LM")),
        ("auto_mapping", (None, {"base_model_class": "LlamaForCausalLM"})),
        ("init_lora_weights", (True, False, "gaussian", "eva")),
        ("loftq_config", ({}, None)),
        ("eva_config", (None, {"rho": 2.0})),
        ("megatron_core", ("megatron.core",)),
        ("qalora_group_size", (16,)),
        ("peft_version", ("0.18.0",)),
        ("exclude_modules", (None, ["lm_head"])),
        ("layers_to_transform", (None, [0, 1])),
    )
    for name, values in choices:
        yield Strange({name: chance.choice(values)}, True)


def check_strange(seed: int, reached: Counter[str]) -> Violation | None:
    """Each kind once, of adapters of its own."""
    chance = random.Random(f"strange adapters {seed}")
    told = [(each, False) for each in _strange(chance, 2)] + [(each, True) for each in _harmless(chance)]
    for number, (strange, must_be_read) in enumerate(told):
        made = make_adapter(
            _SHAPE, seed % 2**20 + number, rank=2, alpha=5.0, is_stabilised=chance.random() < 0.3, modules=("q", "v", "down")
        )
        found = _judged(made, strange, must_be_read)
        if found is not None:
            return found
        reached["settings without effect" if must_be_read else "settings refused or read as meant"] += 1
    return None


def _judged(made: MadeAdapter, strange: Strange, must_be_read: bool) -> Violation | None:
    with TemporaryDirectory() as folder:
        write_adapter(made, Path(folder), strange.settings, strange.more)
        try:
            lora = load_lora(Path(folder), _SHAPE)
        except BadInput as error:
            return _violation(strange, f"refused: {error}", "read: it changes no product") if must_be_read else None
    if not strange.is_plain:
        return _violation(strange, "taken for a plain adapter", "refused, or another product than a plain adapter's")
    off = _largest_error(made, strange, lora)
    return (
        None if off < 1e-5 else _violation(strange, f"a product that is off by {off:.3g} of its size", "what PEFT multiplies")
    )


def _largest_error(made: MadeAdapter, strange: Strange, lora: LoraWeights) -> float:
    worst = 0.0
    for layer, (modules, found) in enumerate(zip(made.layers, lora.layers, strict=True)):
        for module, (a, b) in modules.items():
            alpha = strange.alpha(layer, module)
            scale = made.scale if alpha is None else replace(made, alpha=alpha).scale
            due = scale * (b.astype(np.float64) @ a.astype(np.float64))
            told = lora.scale * (found[module].b.double() @ found[module].a.double()).numpy()
            worst = max(worst, float(np.abs(told - due).max() / np.abs(due).max()))
    return worst


def _violation(strange: Strange, found: str, expected: str) -> Violation:
    settings = ", ".join(f"{name} {value!r}" for name, value in strange.settings.items())
    facts = (f"{'settings':<13} {settings}", *((f"{'tensors':<13} {', '.join(strange.more)}",) if strange.more else ()))
    return Violation("RS-1", "adapters", f"an adapter's folder with {settings}", found, expected, facts)
