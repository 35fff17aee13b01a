"""A language model with adapters: workloads that load, name, reload and unload them, run and judged against merged weights.

Owns the meaning of a spec: {"target": "adapters", "config": {fields of EngineConfig}, "seed": n, "setting":
{"is_batch_invariant": bool, "preempts_at": [n, ...], "buckets": [n, ...], "streams": "chance"}}, the model and the adapters
that follow from it, and the judgement. Adapters are read from folders that `made_adapters.py` writes. The oracle computes with
w + scale * b * a in float64 (Hu et al. 2021, section 4.1), of what was written: no file, no slot, no row, no batch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from differential.compare import CachedOracle, Divergence, Emitted, against_oracle, bitwise, endings, tolerance_of, worst_shares
from differential.faults import StepwiseMemory
from differential.made_adapters import MadeAdapter, make_adapter, write_adapter
from differential.preempting import PreemptingScheduler
from differential.reference import reference_logits
from differential.running import Recorder, gather
from differential.setting import Setting
from differential.streamed_store import StreamedRunner
from engine_under_test.config import EngineConfig
from engine_under_test.engine import Engine
from engine_under_test.errors import BadInput
from engine_under_test.execution.adapter_slots import AdapterLibrary
from engine_under_test.execution.runner import Launch
from engine_under_test.execution.transformer import TransformerRunner
from engine_under_test.model.lora import MODULES, LoraModule, LoraWeights, load_lora
from engine_under_test.model.weights import LlamaConfig, LlamaWeights, tiny_random
from engine_under_test.seams import Device
from engine_under_test.types import Adapter, Output, Plan, Request, Reservation
from models.build import config_from
from properties.op import Op, OpKind
from properties.verdict import Violation

TARGET = "adapters"
VOCAB = 97
_SHAPE = LlamaConfig(VOCAB, 48, 2, 4, 2, 16, 64, ties_head=False)
_RANKS = (1, 2, 4, 3)
_ALPHAS = (6.0, 0.5, 5.0)  # none is a rank
_MODULES: tuple[tuple[str, ...], ...] = (MODULES, ("q", "v"), ("k", "o", "down"), ("gate", "up"))


def model_of(seed: int) -> LlamaWeights:
    return tiny_random(_SHAPE, seed % 2**31)


def adapter_of(adapter: Adapter, seed: int) -> MadeAdapter:
    """What an adapter's name and version stand for in a world: ranks, scales, what they are divided by, and modules differ
    between them."""
    number = sum(map(ord, adapter.name)) + 7 * adapter.version
    return make_adapter(
        _SHAPE,
        seed % 2**20 + 1000 * number,
        rank=_RANKS[number % len(_RANKS)],
        alpha=_ALPHAS[number % len(_ALPHAS)],
        is_stabilised=number // 2 % 2 == 0,
        modules=_MODULES[number // 3 % len(_MODULES)],  # each with each rank
    )


def weights_of_adapter(adapter: Adapter, seed: int) -> LoraWeights:
    """The same as the engine reads it from a folder."""
    with TemporaryDirectory() as folder:
        write_adapter(adapter_of(adapter, seed), Path(folder))
        return load_lora(Path(folder), _SHAPE)


def as_meant(made: MadeAdapter) -> LoraWeights:
    """For the oracle: nothing of it was read from a file."""
    layers = [
        {name: LoraModule(torch.from_numpy(a), torch.from_numpy(b)) for name, (a, b) in modules.items()}
        for modules in made.layers
    ]
    return LoraWeights(made.rank, made.scale, tuple(layers))


def merged(weights: LlamaWeights, lora: LoraWeights) -> LlamaWeights:
    """The model with an adapter folded into it, in float64."""
    layers = []
    for layer, modules in zip(weights.layers, lora.layers, strict=True):
        changed = {
            name: getattr(layer, name).double() + lora.scale * (factors.b.double() @ factors.a.double())
            for name, factors in modules.items()
        }
        layers.append(replace(layer, **changed))
    return replace(weights, layers=tuple(layers))


@dataclass(frozen=True, slots=True)
class Ran:
    """What came of a workload. ``reached``: how often each thing happened that it is about."""

    emitted: tuple[Emitted, ...]
    reached: Mapping[str, int]
    violation: Violation | None = None


class AdapterRecorder(Recorder):
    """Also counts what becomes of adapters."""

    def __init__(self, runner: Any) -> None:
        super().__init__(runner, StepwiseMemory(()), None)
        self._seen: dict[int, Adapter] = {}
        self._names: set[str] = set()

    def launch(self, plan: Plan, reservation: Reservation) -> Launch:
        """See `runner.Runner`."""
        launch = super().launch(plan, reservation)
        used = set(reservation.adapter_slots)
        self.reached["steps with several adapters"] += len(used - {0}) > 1
        self.reached["steps with and without an adapter"] += len(used) > 1 and 0 in used
        for slot, adapter in reservation.adapter_loads:
            self.reached["loads"] += 1
            self.reached["slots taken again"] += self._seen.get(slot, adapter) != adapter
            self.reached["new versions"] += adapter.version > 1
            self._seen[slot] = adapter
        return launch


@dataclass(slots=True)
class _Drive:
    """An engine on a workload."""

    engine: Engine
    library: AdapterLibrary
    seed: int
    requests: list[Request] = field(default_factory=list)

    def apply(self, op: Op) -> None:
        adapter = Adapter(op.request_id, op.k)
        match op.kind:
            case OpKind.ADD if op.request is not None:
                if self.engine.submit(op.request).is_accepted:
                    self.requests.append(op.request)
            case OpKind.LOAD_ADAPTER:
                self.library.add(adapter, weights_of_adapter(adapter, self.seed))
                _unless_refused(self.engine.load_adapter, adapter)
            case OpKind.UNLOAD_ADAPTER:
                _unless_refused(self.engine.unload_adapter, adapter)
            case OpKind.STEP:
                if self.engine.has_work:
                    self.engine.step()
        self.library.keep(self.engine.adapters)


def _unless_refused(verb: Callable[[Adapter], None], adapter: Adapter) -> None:
    try:
        verb(adapter)
    except BadInput:
        return


def setting_of(spec: Mapping[str, Any]) -> Setting:
    found = dict(spec.get("setting", {}))
    for name in ("preempts_at", "buckets"):
        found[name] = tuple(found.get(name, ()))
    return Setting(TARGET, streams_seed=spec["seed"] % 1000, **found)


def run(spec: Mapping[str, Any], ops: Sequence[Op]) -> Ran:
    """The workload in its world, until nothing is left. What can not be loaded or named is left out."""
    config, setting, seed = config_from(spec["config"]), setting_of(spec), spec["seed"]
    weights = model_of(seed)
    library = AdapterLibrary(_SHAPE, max(_RANKS))
    for adapter in config.adapters:
        library.add(adapter, weights_of_adapter(adapter, seed))

    def make(device: Device | None) -> TransformerRunner:
        return TransformerRunner(
            weights,
            config.num_blocks,
            config.block_size,
            device=device,
            is_batch_invariant=setting.is_batch_invariant,
            buckets=setting.buckets,
            adapters=library,
            num_adapter_slots=config.max_active_adapters,
        )

    runner = StreamedRunner(setting, make, config.block_size) if setting.streams else make(None)
    recorder = AdapterRecorder(runner)
    asked = [op.request for op in ops if op.request is not None]
    scheduler = PreemptingScheduler(asked, setting.preempts_at) if setting.preempts_at else None
    drive = _Drive(Engine(config, recorder, observer=recorder.observe, scheduler=scheduler), library, seed)
    for op in ops:
        drive.apply(op)
    for _ in range(_most_steps(config, drive.requests)):
        drive.apply(Op(OpKind.STEP))
    outputs: list[Output] = list(drive.engine.take_outputs())
    disorder = runner.disorder() if isinstance(runner, StreamedRunner) else None
    return Ran(tuple(gather(drive.requests, outputs, recorder)), recorder.reached, disorder)


def _most_steps(config: EngineConfig, requests: Sequence[Request]) -> int:
    return 50 + 6 * sum(len(each.prompt) + each.sampling.max_tokens for each in requests) * config.max_plans_in_flight


class AdapterOracles:
    """The oracle of each adapter in a world, and of the model without one."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._weights = model_of(seed)
        self._known: dict[Adapter | None, CachedOracle] = {}

    def of(self, adapter: Adapter | None) -> CachedOracle:
        if adapter not in self._known:
            weights = self._weights if adapter is None else merged(self._weights, as_meant(adapter_of(adapter, self._seed)))
            name = "the reference" if adapter is None else f"the model merged with {adapter.name} v{adapter.version}"

            def ask(tokens: tuple[int, ...], begin: int) -> torch.Tensor:
                return reference_logits(weights, tokens, begin=begin)

            self._known[adapter] = CachedOracle(name, ask)
        return self._known[adapter]


@dataclass(slots=True)
class Judged:
    """A run with its verdict: the first violation, how often each sentence was judged, the errors as shares of the spread."""

    ran: Ran
    violation: Violation | None = None
    evaluations: Counter[str] = field(default_factory=Counter)
    shares: list[float] = field(default_factory=list)


def judge(spec: Mapping[str, Any], ops: Sequence[Op], oracles: AdapterOracles | None = None) -> Judged:
    """SE-1, SE-3 and SC-12 of each request against its own merged model; SE-4 in the batch-invariant mode, against the same
    request by itself."""
    ran = run(spec, ops)
    oracles = AdapterOracles(spec["seed"]) if oracles is None else oracles
    judged, share = Judged(ran, ran.violation), tolerance_of(torch.float32)
    for each in ran.emitted:
        oracle = oracles.of(each.request.adapter)
        found = endings(each) or against_oracle(each, oracle, share)
        judged.evaluations.update(("SC-12", "SE-1" if each.request.sampling.temperature == 0 else "SE-2", "SE-3"))
        judged.shares += worst_shares(each, oracle)
        if found is None and setting_of(spec).is_batch_invariant:
            judged.evaluations["SE-4"] += 1
            found = _apart_from_alone(spec, each)
        judged.violation = judged.violation or (None if found is None else found.violation(_facts(each)))
    return judged


def _apart_from_alone(spec: Mapping[str, Any], run_with_others: Emitted) -> Divergence | None:
    request = run_with_others.request
    config = {**spec["config"], "max_tokens_per_step": 256, "max_num_seqs": 40, "num_blocks": 64, "max_plans_in_flight": 1}
    if request.adapter is not None:
        config["adapters"] = [[request.adapter.name, request.adapter.version]]
    alone = run({**spec, "config": config, "setting": {"is_batch_invariant": True}}, [Op(OpKind.ADD, request=request)])
    return bitwise(run_with_others, alone.emitted[0])


def _facts(each: Emitted) -> tuple[str, ...]:
    adapter = each.request.adapter
    return ("without an adapter" if adapter is None else f"with adapter {adapter.name} version {adapter.version}",)
