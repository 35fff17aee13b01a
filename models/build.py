"""Builds a World from a JSON-able description, so that a replay file can say which world it was.

Owns the meaning of a spec: {"target": "assay" | "radix" | "kv" | "scheduler" | "transformers", "config": {...}, "hasher":
"blake2b" | "two_bit" | "constant", "device": "plain" | "streams", "remote": {"capacity_blocks": n}, "speculation": {"proposer":
"lookup" | "knowing" | "drawing", "width": n}, "grammars": true, "keeps_rows": true, "options": {...}}. Remote: the prefix
cache of "assay" goes on in a pool of that many blocks. Speculation: "assay" has up to so many drafts a row and step. Grammars:
its requests may have those of `properties.small_grammars`. Keeps rows: the harness's runner does, from step to step. Options
are for targets written by others: what they let a user choose.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from engine_under_test.adapters.base import Target
from engine_under_test.caps import Caps
from engine_under_test.config import EngineConfig, Order
from engine_under_test.errors import BadInput, ConfigError
from engine_under_test.execution.schedule import Chooser
from engine_under_test.seams import Hasher
from engine_under_test.types import Adapter
from models.device import Device
from models.prefix_key import HASHERS
from models.world import World, caps_of_store

if TYPE_CHECKING:
    from engine_under_test.adapters.ours import RemoteSide
    from models.link_account import LinkAccount
    from models.proposers import Keeping

DEFAULT_HASHER = "blake2b"
Spec = Mapping[str, Any]

_FIELDS = frozenset({"target", "config", "hasher", "device", "remote", "speculation", "grammars", "keeps_rows", "options"})
_MORE = ("remote", "speculation", "grammars")
_CONFIG_FIELDS = {field.name: field for field in dataclasses.fields(EngineConfig)}


def config_from(data: Mapping[str, Any]) -> EngineConfig:
    """An EngineConfig from the fields that differ from its defaults. Raises BadInput on anything else."""
    if unknown := set(data) - set(_CONFIG_FIELDS):
        raise BadInput(f"a configuration has the fields {sorted(_CONFIG_FIELDS)}, found {sorted(unknown)}; remove them")
    fields = dict(data)
    try:
        if "adapters" in fields:
            fields["adapters"] = tuple(Adapter(name, version) for name, version in fields["adapters"])
        if "logits_processors" in fields:
            fields["logits_processors"] = tuple(fields["logits_processors"])
        if "order" in fields:
            fields["order"] = Order(fields["order"])
        return EngineConfig(**fields)
    except (ConfigError, TypeError, ValueError) as error:
        raise BadInput(f"this configuration can not be built: {error}") from error


def config_to(config: EngineConfig) -> dict[str, Any]:
    """The inverse of `config_from`."""
    found: dict[str, Any] = {}
    for name, field in _CONFIG_FIELDS.items():
        value = getattr(config, name)
        if value == field.default:
            continue
        if name == "adapters":
            value = [[adapter.name, adapter.version] for adapter in value]
        found[name] = value.value if isinstance(value, Order) else value
    return found


def target_from(spec: Spec) -> Target:
    """The target of a spec, with nothing around it."""
    if unknown := set(spec) - _FIELDS:
        raise BadInput(f"a world has the fields {sorted(_FIELDS)}, found {sorted(unknown)}; remove them")
    name = spec.get("target", "assay")
    if name not in _TARGETS and name not in _OTHERS:
        raise BadInput(f"a world has one of the targets {sorted((*_TARGETS, *_OTHERS))}, found {name!r}")
    config = config_from(spec.get("config", {}))
    if any(field in spec for field in _MORE):
        return _with_more(name, config, spec)
    if name in _OTHERS:
        return _OTHERS[name](config, spec.get("options", {}))
    if "options" in spec:
        raise BadInput(f"options are for the targets {sorted(_OTHERS)}, found some for {name!r}; remove them")
    return _TARGETS[name](config, hasher_of(spec))


def hasher_of(spec: Spec) -> Hasher:
    name = spec.get("hasher", DEFAULT_HASHER)
    if name not in HASHERS:
        raise BadInput(f"a world has one of the hashers {sorted(HASHERS)}, found {name!r}")
    return HASHERS[name]


def world_from(spec: Spec, *, chooser: Chooser | None = None, **options: Any) -> World:
    """The World of a spec. ``chooser``: of a device with streams, without one the choices of the ops; ``options`` go to
    `World`."""
    target = target_from(spec)
    name = spec.get("device", "plain")
    if name not in _DEVICES:
        raise BadInput(f"a world has one of the devices {sorted(_DEVICES)}, found {name!r}")
    if spec.get("keeps_rows", True) is not True:
        raise BadInput(f'rows are kept, "keeps_rows": true, or that is not named, found {spec["keeps_rows"]!r}')
    device = _DEVICES[name](caps_of_store(target.caps), chooser, "keeps_rows" in spec)
    return World(target, hasher=hasher_of(spec), device=device, kept_drafts=_kept_drafts(target), link=_link(target), **options)


def _link(target: Target) -> LinkAccount | None:
    """The account of the link of a target whose remote pool is ours."""
    if not target.caps.has_remote:
        return None
    from models.remote_side import SimulatedRemote

    remote = getattr(target, "remote", None)
    return remote.account if isinstance(remote, SimulatedRemote) else None


def _kept_drafts(target: Target) -> Keeping | None:
    """What the proposer of the target keeps, if it has one."""
    if not target.caps.max_drafts:
        return None
    from models.proposers import Keeping

    proposer = getattr(target, "proposer", None)
    return proposer if isinstance(proposer, Keeping) else None


def _assay(config: EngineConfig, hasher: Hasher) -> Target:
    from engine_under_test.adapters.ours import AssayTarget

    return AssayTarget(config, hasher)


def _with_more(name: str, config: EngineConfig, spec: Spec) -> Target:
    """Our engine with a remote pool, with drafts, with grammars, or any of these."""
    from engine_under_test.adapters.ours import AssayTarget
    from engine_under_test.drafting import Drafting
    from models.compiled import compiled
    from models.proposers import proposer_from

    if name != "assay":
        raise BadInput(f'{", ".join(_MORE)} are of the target "assay", found some of {name!r}; leave them out')
    if spec.get("grammars", True) is not True:
        raise BadInput(f'grammars are there, "grammars": true, or not named, found {spec["grammars"]!r}')
    remote = _remote(spec["remote"], config) if "remote" in spec else None
    drafting = Drafting(proposer_from(spec["speculation"], config.vocab_size)) if "speculation" in spec else None
    grammars = compiled(config.vocab_size) if "grammars" in spec else None
    return AssayTarget(config, hasher_of(spec), remote, drafting, grammars)


def _remote(spec: Any, config: EngineConfig) -> RemoteSide:
    from models.remote_side import SimulatedRemote

    count = spec.get("capacity_blocks") if isinstance(spec, Mapping) and len(spec) == 1 else None
    if type(count) is not int or count < 1:
        raise BadInput(f'a remote pool is {{"capacity_blocks": 1 or more}}, found {spec!r}')
    return SimulatedRemote(count, config.block_size)


def _radix(config: EngineConfig, hasher: Hasher) -> Target:
    from models.targets.radix import RadixTarget

    return RadixTarget(config, hasher)


def _kv(config: EngineConfig, hasher: Hasher) -> Target:
    from models.targets.kv_alone import KvAlone

    return KvAlone(config, hasher)


def _scheduler(config: EngineConfig, _hasher: Hasher) -> Target:
    from models.targets.scheduler_alone import SchedulerAlone

    return SchedulerAlone(config)


def _transformers(config: EngineConfig, options: Mapping[str, Any]) -> Target:
    from engine_under_test.adapters.transformers_cb import TransformersTarget
    from engine_under_test.adapters.transformers_parts import options_from

    return TransformersTarget(config, options_from(options))


def _plain(caps: Caps, _chooser: Chooser | None, keeps_rows: bool) -> Device:
    return Device(caps, keeps_rows)


def _streams(caps: Caps, chooser: Chooser | None, keeps_rows: bool) -> Device:
    from models.streamed_device import StreamedDevice

    return StreamedDevice(caps, chooser, keeps_rows)


_DEVICES: dict[str, Callable[[Caps, Chooser | None, bool], Device]] = {"plain": _plain, "streams": _streams}
_OTHERS: dict[str, Callable[[EngineConfig, Mapping[str, Any]], Target]] = {"transformers": _transformers}
_TARGETS: dict[str, Callable[[EngineConfig, Hasher], Target]] = {
    "assay": _assay,
    "radix": _radix,
    "kv": _kv,
    "scheduler": _scheduler,
}
