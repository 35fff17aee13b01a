"""One workload under one setting, judged: against both oracles, the plain run, and the plans of the other runner.

Owns the order of the questions and the count of what was asked. Never a tolerance or a comparison (`compare.py`), and never a
verdict of a suite.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import zip_longest

import torch

from differential import cells
from differential.cells import CachedCells
from differential.compare import (
    CachedOracle,
    Divergence,
    Emitted,
    against_oracle,
    against_plain,
    bitwise,
    endings,
    explained,
    tolerance_of,
    typical_of,
    typically_off,
    worst_shares,
)
from differential.hf_oracle import HfOracle
from differential.made_media import spell_out
from differential.reference import reference_cells, reference_logits
from differential.rounding import Passes, bound_of, rounding_of, rounds_otherwise
from differential.running import ROWS_COMPARED, MakeRunner, Ran, run, transformer_runner, warmed
from differential.setting import DTYPES, ModelSpec, Setting, World, encoder_of, plain_world, weights_of
from differential.streamed_store import SENTENCES as STREAMS
from engine_under_test.execution.fingerprint import FingerprintRunner
from engine_under_test.execution.runner import Runner
from engine_under_test.seams import Memory
from engine_under_test.types import Plan, Request
from properties.verdict import Violation

PLANS = "DET"  # of a workload whose plans depend on what computes the tokens


@dataclass(frozen=True, slots=True)
class Oracles:
    """Both oracles of one model. The second is loaded when it is asked first."""

    own: CachedOracle
    others: CachedOracle

    def __iter__(self) -> Iterator[CachedOracle]:
        yield self.own
        yield self.others


def oracles_of(model: ModelSpec) -> Oracles:
    """Oracle one in float64, oracle two in float32, on the weights as they are stored."""
    loaded: list[HfOracle] = []
    spelled = encoder_of(model).spelled

    def ask_reference(tokens: tuple[int, ...], begin: int) -> torch.Tensor:
        return reference_logits(weights_of(model), tokens, begin=begin, given=spelled)

    def ask_transformers(tokens: tuple[int, ...], begin: int) -> torch.Tensor:
        if not loaded:
            loaded.append(HfOracle(weights_of(model), torch.float32, spelled))
        return loaded[0].logits(tokens, begin=begin)

    return Oracles(CachedOracle("reference", ask_reference), CachedOracle("transformers", ask_transformers))


@dataclass(frozen=True, slots=True)
class Judged:
    """What was found. ``violation`` is the first divergence with both oracles' views, or nothing. ``evaluations``: how often
    each sentence was asked. ``shares``: for each token the largest error of a logit, as a share of the spread."""

    ran: Ran
    divergence: Divergence | None
    violation: Violation | None
    evaluations: Mapping[str, int] = field(default_factory=dict)
    shares: tuple[float, ...] = ()


@dataclass(slots=True)
class Judge:
    """Judges workloads on one model; plain runs are made once for all settings that share them."""

    model: ModelSpec
    make_runner: MakeRunner = transformer_runner
    asks_second_oracle: bool = True
    asks_plain_run: bool = True
    asks_plans: bool = True
    _plain: dict[tuple[World, tuple[Request, ...]], Ran] = field(default_factory=dict)
    _oracles: Oracles | None = None
    _cells: CachedCells | None = None
    _passes: Passes | None = None

    @property
    def watches_store(self) -> bool:
        """A store of a real model is too large to be compared after each step."""
        return self.model.shape is not None

    @property
    def oracles(self) -> Oracles:
        if self._oracles is None:
            self._oracles = oracles_of(self.model)
        return self._oracles

    def judge(self, world: World, requests: Sequence[Request]) -> Judged:
        """Runs the requests under the world's setting and asks everything, up to the first divergence."""
        ran = run(world, requests, self.make_runner, watches_store=self.watches_store)
        if world == plain_world(world):
            self._plain[world, tuple(requests)] = ran
        asked: Counter[str] = Counter()
        if world.setting.streams:
            asked.update(dict.fromkeys(STREAMS, ran.reached.get("operations on streams", 0)))
        if ran.disorder is not None:
            return Judged(ran, None, replace(ran.disorder, facts=(*ran.disorder.facts, *_facts(world, requests))), asked)
        asked["SC-13"] += ran.reached.get(ROWS_COMPARED, 0)
        if ran.violation is not None and ran.violation.invariant == "SC-13":  # what is wrong behind it follows from it
            return Judged(ran, None, replace(ran.violation, facts=(*ran.violation.facts, *_facts(world, requests))), asked)
        found = self._first(world, requests, ran, asked)
        shares = tuple(share for each in ran.emitted for share in worst_shares(each, self.oracles.own))
        if found is not None:
            divergence, emitted = found
            for oracle in self.oracles:
                divergence = explained(divergence, emitted, oracle)
            return Judged(ran, divergence, divergence.violation(_facts(world, requests)), asked, shares)
        violation = self._of_the_store(world, requests, ran, asked)
        if violation is None and self.asks_plans and not (world.setting.has_faults or world.setting.streams):
            violation = self._plans_differ(world, requests, ran, asked)
        return Judged(ran, None, violation, asked, shares)

    def _first(
        self, world: World, requests: Sequence[Request], ran: Ran, asked: Counter[str]
    ) -> tuple[Divergence, Emitted] | None:
        share = tolerance_of(DTYPES[self.model.dtype], self.model.name)
        for each in ran.emitted:
            asked["SC-12"] += 1
            asked["SE-3"] += len(each.tokens)
            asked["SE-1" if each.request.sampling.temperature == 0 else "SE-2"] += len(each.tokens)
            if ran.due.ends(each) and (found := ran.due.judge(each)) is not None:
                return found, each
            oracles = self.oracles if self.asks_second_oracle else (self.oracles.own,)
            for oracle in oracles:
                if (found := against_oracle(each, oracle, share)) is not None:
                    return found, each
            if not ran.due.ends(each) and (found := endings(each)) is not None:
                return found, each
        if (off := self._off_in_all(world, ran)) is not None or not self.asks_plain_run:
            return off
        for each, plain in zip(ran.emitted, self._plain_run(world, requests).emitted, strict=True):
            found = against_plain(each, plain, self.oracles.own, share)
            if found is None and world.setting.is_batch_invariant:
                asked["SE-4"] += len(each.tokens)
                found = bitwise(each, plain)
            if found is not None:
                return found, each
        return None

    def _off_in_all(self, world: World, ran: Ran) -> tuple[Divergence, Emitted] | None:
        """What the rows of a run show together: the median of their errors, and in bfloat16 where the engine rounds."""
        typical = typical_of(DTYPES[self.model.dtype], self.model.name)
        off = typically_off(ran.emitted, self.oracles.own, typical)
        if off is not None or self.model.dtype != "bfloat16":
            return off
        if self._passes is None:
            self._passes = Passes(self.model)
        rounding = rounding_of(world.setting)
        allowed = bound_of(rounding, ran.emitted)
        for rounded in self._passes.of(rounding, asks_second_oracle=self.asks_second_oracle):
            if (off := rounds_otherwise(ran.emitted, self.oracles.own, rounded, allowed)) is not None:
                return off
        return None

    def _plain_run(self, world: World, requests: Sequence[Request]) -> Ran:
        key = plain_world(world), tuple(requests)
        if key not in self._plain:
            self._plain[key] = run(
                *key, self.make_runner, watches_store=self.watches_store and key[0].setting.is_batch_invariant
            )
        return self._plain[key]

    def _of_the_store(self, world: World, requests: Sequence[Request], ran: Ran, asked: Counter[str]) -> Violation | None:
        """KV-16, KV-11: only what plans list was changed. SE-1: each cell is the reference's; SE-4: it has the plain run's
        bits."""
        asked["KV-16"] += len(ran.plans) if self.watches_store else 0
        found = ran.violation
        known = {
            (each.request.request_id, each.choice): spell_out(each.request, each.request.prompt + each.tokens)
            for each in ran.emitted
            if not set(each.forced).intersection(world.setting.sick_tokens)
        }
        known.update({(warmed(request_id), 0): tokens for (request_id, choice), tokens in known.items() if choice == 0})
        if found is None:
            if self._cells is None:
                spelled = encoder_of(self.model).spelled
                self._cells = CachedCells(lambda tokens: reference_cells(weights_of(self.model), tokens, given=spelled))
            compared = cells.against_reference(ran.written, known, self._cells, cells.TOLERANCES[DTYPES[self.model.dtype]])
            asked["SE-1"] += compared.num
            found = compared.violation
        if found is None and world.setting.is_batch_invariant and self.asks_plain_run:
            compared = cells.against_plain(ran.written, self._plain_run(world, requests).written, known)
            asked["SE-4"] += compared.num
            found = compared.violation
        return None if found is None else replace(found, facts=(*found.facts, *_facts(world, requests)))

    def _plans_differ(self, world: World, requests: Sequence[Request], ran: Ran, asked: Counter[str]) -> Violation | None:
        """A plan depends on tokens through their number and the stop tokens alone: without stop tokens the fingerprint runner
        gets the same plans, but for the tokens in them."""
        if any(request.sampling.stop_token_ids for request in requests):
            return None
        asked[PLANS] += len(ran.plans)
        return first_plan_apart(ran.plans, run(world, requests, fingerprint_runner).plans, _facts(world, requests))


def fingerprint_runner(world: World, _memory: Memory) -> Runner:
    """The other runner in the same world."""
    return FingerprintRunner(world.config.num_blocks, world.config.block_size, world.config.vocab_size)


def first_plan_apart(plans: Sequence[Plan], others: Sequence[Plan], facts: tuple[str, ...] = ()) -> Violation | None:
    """The first plan in which two runs of one workload differ in anything but the tokens themselves."""
    columns = [each.name for each in fields(Plan) if each.name not in ("token_ids", "outputs")]
    for number, (one, other) in enumerate(zip_longest(plans, others), start=1):
        unlike = [name for name in columns if getattr(one, name, None) != getattr(other, name, None)]
        if unlike:
            name = unlike[0]
            return Violation(
                PLANS,
                "one workload, one sequence of plans",
                f"plan {number}, {name}",
                f"{getattr(one, name, 'no plan')} with the language model",
                f"{getattr(other, name, 'no plan')}, as with fingerprints",
                facts,
            )
    return None


def describe_setting(world: World) -> str:
    """A setting in a person's words: its name, and what of it is not plain."""
    config, setting = world.config, world.setting
    parts = [
        f"pool {config.num_blocks} × {config.block_size}",
        f"budget {config.max_tokens_per_step}",
        f"depth {config.max_plans_in_flight - 1}",
        "batch-invariant" if setting.is_batch_invariant else "",
        f"attention {setting.attention}" if setting.attention else "",
        "packed weights" if setting.packs_weights else "",
        f"buckets of {', '.join(map(str, setting.buckets))} rows" if setting.buckets else "",
        "cache warmed" if setting.is_warm else "",
        f"memory refused {_refusals_of(setting)}" if setting.refuses else "",
        f"no number for token {', '.join(map(str, setting.nan_tokens))}" if setting.nan_tokens else "",
        f"an infinite logit {setting.overflow_column} after token {', '.join(map(str, setting.overflow_tokens))}"
        if setting.overflow_tokens
        else "",
        f"of every {setting.loses} plans one given up" if setting.loses else "",
        f"streams by {setting.streams} {setting.streams_seed}" if setting.streams else "",
        f"{setting.preempts or 'all'} preempted after {', '.join(map(str, setting.preempts_at))} tokens"
        if setting.preempts_at
        else "",
        f"{setting.choices} choices" if setting.choices > 1 else "",
        *(f"no {name.replace('_', ' ')}" for name in ("prefix_cache", "batching", "chunking") if not getattr(config, name)),
    ]
    return f"{setting.name}: {', '.join(part for part in parts if part)}"


def _refusals_of(setting: Setting) -> str:
    """Whose allocation in which launch; of many, the first ones."""
    found = [f"to allocation {k} of launch {number}" for number, k in enumerate(setting.refuses, start=1) if k]
    return ", ".join(found if len(found) < 4 else [*found[:3], f"{len(found) - 3} more"])


def _facts(world: World, requests: Sequence[Request]) -> tuple[str, ...]:
    return (
        f"{'setting':<13} {describe_setting(world)}",
        f"{'model':<13} {world.model.words}",
        f"{'requests':<13} {', '.join(f'{each.request_id} ({len(each.prompt)} tokens)' for each in requests)}",
    )


def shrunk_judge(judge: Judge, violation: Violation) -> Judge:
    """A judge that asks only what this violation needs."""
    return replace(
        judge,
        asks_second_oracle=False,
        asks_plain_run=any(fact.startswith("plain run") for fact in violation.facts),
        asks_plans=violation.invariant == PLANS,
    )
