"""How requests are run, and on which model: values that go into a replay file and come back.

Owns the meaning of a spec: {"target": "transformer", "model": {...}, "config": {fields of EngineConfig}, "setting": {...}}.
Never runs anything (`running.py`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from functools import lru_cache
from typing import Any

import torch

from differential.made_media import MadeEncoder
from engine_under_test.config import EngineConfig
from engine_under_test.errors import BadInput, ConfigError
from engine_under_test.model.weights import LlamaConfig, LlamaWeights, tiny_random
from models.build import config_from, config_to

TARGET = "transformer"  # of a world that this folder builds
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
SMOLLM2 = "smollm2"


@dataclass(frozen=True, slots=True)
class Setting:
    """What may not change an output, or not by more than rounding.

    ``attention``: a back end by its name, "" for the device's own. ``is_alone``: a request is submitted when the one before
    has ended. ``gap``: steps between two submissions. ``is_warm``: every prompt is run once beforehand, under another name,
    for the prefix cache. ``preempts_at``: a choice is preempted, once each, when it has emitted so many tokens. ``preempts``:
    the only request that is. ``choices``: each request is forked into so many. ``packs_weights``: products for few rows use
    copies of the weights in other layouts, as the benchmark of the engine does. ``buckets``: numbers of rows to which
    decodes are padded.

    What is to go wrong, so that it can be judged who suffers: ``refuses``: its i-th entry, if not 0, is the allocation of the
    i-th launch that the memory refuses, counted from 1. ``nan_tokens``: tokens whose embedding is not a number.
    ``overflow_tokens``: tokens after which one logit overflows, that of ``overflow_column``, upwards or (``overflows_down``)
    downwards, or (``overflows_to_nan``) is NaN instead, alone in its row; of a model with a spare unit.
    ``loses``: of every so many launches, at least 2, the host gives one up as soon as it is launched, while an older plan is in
    flight. ``streams``: the runner works on a simulated device with streams, whose order is "chance" or "priorities", drawn
    from ``streams_seed``.
    """

    name: str
    attention: str = ""
    is_batch_invariant: bool = False
    is_alone: bool = False
    gap: int = 0
    is_warm: bool = False
    preempts_at: tuple[int, ...] = ()
    preempts: str = ""
    choices: int = 1
    packs_weights: bool = False
    buckets: tuple[int, ...] = ()
    refuses: tuple[int, ...] = ()
    nan_tokens: tuple[int, ...] = ()
    overflow_tokens: tuple[int, ...] = ()
    overflow_column: int = 0
    overflows_down: bool = False
    overflows_to_nan: bool = False
    loses: int = 0
    streams: str = ""
    streams_seed: int = 0

    @property
    def sick_tokens(self) -> tuple[int, ...]:
        """After these a row has logits that are not numbers."""
        return self.nan_tokens + self.overflow_tokens

    @property
    def has_faults(self) -> bool:
        """Some requests may end with an error."""
        return bool(self.refuses or self.sick_tokens)


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A model by what it is made from: ``name`` "tiny" with shape and seed, or the name of a fetched one.

    ``stream`` and ``sharpness`` change a tiny one. ``stream``: the scale of the embedding and of what each layer adds to it; a
    small one makes the eps of a norm matter. ``sharpness``: the scale of the queries; a large one makes scores large.
    ``has_spare``: the first hidden unit is 0 in every row, for a fault to use.
    """

    name: str = "tiny"
    dtype: str = "float32"
    seed: int = 0
    shape: LlamaConfig | None = None
    stream: float = 1.0
    sharpness: float = 1.0
    has_spare: bool = False

    @property
    def words(self) -> str:
        """As a person reads it."""
        if self.shape is None:
            return f"{self.name} in {self.dtype}"
        shape = self.shape
        tied = "tied" if shape.ties_head else "untied"
        scaled = "".join(f", {name} × {getattr(self, name):g}" for name in _SCALES if getattr(self, name) != 1)
        return (
            f"tiny model {self.seed} in {self.dtype}: {shape.num_layers} layers, {shape.num_heads} heads on "
            f"{shape.num_kv_heads}, {tied}, eps {shape.rms_eps:g}, theta {shape.rope_theta:g}{scaled}"
        )


_SCALES = ("stream", "sharpness")


@dataclass(frozen=True, slots=True)
class World:
    """A model, the engine around it, and how requests are run."""

    model: ModelSpec
    config: EngineConfig
    setting: Setting


def world_to(world: World) -> dict[str, Any]:
    """The spec of a world, JSON-able."""
    model: dict[str, Any] = {"name": world.model.name, "dtype": world.model.dtype, "seed": world.model.seed}
    if world.model.shape is not None:
        model["shape"] = asdict(world.model.shape)
        model |= {name: getattr(world.model, name) for name in _SCALES if getattr(world.model, name) != 1}
        model |= {"has_spare": True} if world.model.has_spare else {}
    setting = {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in asdict(world.setting).items()
        if value != getattr(_PLAIN, name)
    }
    return {"target": TARGET, "model": model, "config": config_to(world.config), "setting": setting}


def world_of(spec: Mapping[str, Any]) -> World:
    """The inverse of `world_to`. Raises BadInput on anything else."""
    try:
        if unknown := set(spec) - {"target", "model", "config", "setting"}:
            raise ValueError(f"it has no field {sorted(unknown)}")
        model = dict(spec["model"])
        if model.get("dtype", "float32") not in DTYPES:
            raise ValueError(f"dtype is one of {', '.join(DTYPES)}, found {model['dtype']!r}")
        if "shape" in model:
            model["shape"] = LlamaConfig(**model["shape"])
        setting = Setting(**{name: _as_like(name, value) for name, value in spec["setting"].items()})
        if unlike := [each.name for each in fields(Setting) if type(getattr(setting, each.name)) is not type(_like(each.name))]:
            raise TypeError(f"of another type than it should be: {', '.join(unlike)}")
        return World(ModelSpec(**model), config_from(spec.get("config", {})), setting)
    except (KeyError, TypeError, ValueError, AttributeError, ConfigError) as error:
        raise BadInput(f"this is no world of a language model: {error}; check out the commit that wrote it") from error


_PLAIN = Setting("")


def _like(name: str) -> Any:
    return getattr(_PLAIN, name)


def _as_like(name: str, value: Any) -> Any:
    """A file has lists where a setting has tuples."""
    return tuple(value) if isinstance(value, list) and isinstance(getattr(_PLAIN, name, None), tuple) else value


def weights_of(model: ModelSpec) -> LlamaWeights:
    """The weights, remembered for the model asked for last."""
    return _weights(json.dumps(asdict(model), sort_keys=True))


def encoder_of(model: ModelSpec) -> MadeEncoder:
    """What makes embeddings of media in trials of a model."""
    weights = weights_of(model)
    return MadeEncoder(weights.config.hidden_size, weights.embedding.dtype)


@lru_cache(maxsize=2)
def _weights(text: str) -> LlamaWeights:
    data = json.loads(text)
    dtype = DTYPES[data["dtype"]]
    if data["shape"] is not None:
        weights = tiny_random(LlamaConfig(**data["shape"]), data["seed"], dtype)
        weights = _scaled(weights, data["stream"], data["sharpness"])
        return _with_spare(weights) if data["has_spare"] else weights
    from engine_under_test.model.fetch import model_folder
    from engine_under_test.model.load import load_weights

    folder = model_folder(data["name"])
    if folder is None:
        raise BadInput(f"the model {data['name']} is not on this machine; say assay model fetch")
    return load_weights(folder, dtype)


def _scaled(weights: LlamaWeights, stream: float, sharpness: float) -> LlamaWeights:
    embedding = weights.embedding * stream
    layers = tuple(
        replace(layer, q=layer.q * sharpness, o=layer.o * stream, down=layer.down * stream) for layer in weights.layers
    )
    return replace(weights, embedding=embedding, layers=layers, head=embedding if weights.config.ties_head else weights.head)


def _with_spare(weights: LlamaWeights) -> LlamaWeights:
    """Nobody writes to the first unit of the residual stream."""

    def without(matrix: torch.Tensor, *, is_row: bool) -> torch.Tensor:
        matrix = matrix.clone()
        (matrix if is_row else matrix.T)[0] = 0
        return matrix

    embedding = without(weights.embedding, is_row=False)
    layers = tuple(
        replace(layer, o=without(layer.o, is_row=True), down=without(layer.down, is_row=True)) for layer in weights.layers
    )
    return replace(weights, embedding=embedding, layers=layers, head=embedding if weights.config.ties_head else weights.head)


def plain_world(world: World) -> World:
    """The same requests without anything that a setting brings: each alone, whole, by nobody's cache, at depth 0."""
    size = world.config.block_size
    config = replace(
        world.config,
        num_blocks=_ROOMY // size,
        max_tokens_per_step=_ROOMY,
        max_num_seqs=max(world.config.max_num_seqs, world.setting.choices),
        max_plans_in_flight=1,
        prefix_cache=False,
        chunking=True,
        batching=True,
    )
    setting = Setting(
        "plain", is_alone=True, is_batch_invariant=world.setting.is_batch_invariant, choices=world.setting.choices
    )
    return World(world.model, config, setting)


_ROOMY = 2048  # tokens: more than any prompt of a suite has
