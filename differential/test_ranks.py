"""A Llama split over ranks computes what one rank does, within the tolerance of its type: each token and each logit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import Any

import pytest
import torch

from differential.compare import CachedOracle, against_oracle, endings, tolerance_of
from differential.float_settings import VOCAB, requests
from differential.reference import reference_logits
from differential.running import Ran, run
from differential.setting import ModelSpec, Setting, World, weights_of
from engine_under_test.config import EngineConfig
from engine_under_test.distributed.rank_config import FingerprintModel, RandomLlama, RankConfig
from engine_under_test.distributed.rank_launch import RankLaunch
from engine_under_test.distributed.rank_processes import Processes
from engine_under_test.distributed.ranks import Ranks
from engine_under_test.engine import Engine
from engine_under_test.errors import ConfigError, RankLost
from engine_under_test.execution.adapter_slots import AdapterLibrary
from engine_under_test.model.lora import random_lora
from engine_under_test.model.sharding import shard, shard_config, shard_lora
from engine_under_test.model.weights import LlamaConfig, tiny_random
from engine_under_test.types import Adapter, FinishReason, Plan, Request, Reservation, SamplingParams, StepResult

SHAPE = LlamaConfig(
    vocab_size=VOCAB, hidden_size=48, num_layers=2, num_heads=8, num_kv_heads=2, head_size=6, intermediate_size=32
)
POOL = EngineConfig(num_blocks=64, block_size=4, vocab_size=VOCAB)


@pytest.fixture(scope="module")
def processes() -> Iterator[Processes]:
    """One nursery for all groups of this module."""
    made = Processes()
    yield made
    made.close()


class LogitsOfARank:
    """A launch as `differential.running` reads it: the logits are those of the last rank, which nobody samples from."""

    def __init__(self, launch: RankLaunch, world_size: int) -> None:
        self._launch = launch
        self._rank = world_size - 1
        self.plan_id, self.fence = launch.plan_id, launch.fence

    def result(self) -> StepResult:
        return self._launch.result()

    @property
    def logits(self) -> torch.Tensor:
        return torch.from_numpy(self._launch.logits_of(self._rank).copy())


class RankRunner:
    """The group, with logits on each launch."""

    def __init__(self, group: Ranks) -> None:
        self._group = group

    def launch(self, plan: Plan, reservation: Reservation) -> LogitsOfARank:
        return LogitsOfARank(self._group.launch(plan, reservation), self._group.config.world_size)


def run_on_ranks(model: ModelSpec, world_size: int, processes: Processes, setting: Setting) -> Ran:
    assert model.shape is not None
    config = RankConfig(
        world_size,
        RandomLlama(asdict(model.shape), model.seed, model.dtype),
        POOL.num_blocks,
        POOL.block_size,
        shows_evidence=True,
    )
    with Ranks(config, processes) as group:
        return run(World(model, POOL, setting), requests(5), lambda _world, _memory: RankRunner(group))


@pytest.mark.parametrize(
    ("world_size", "kv_heads"),
    [(1, 2), (2, 2), (4, 2), (4, 8)],
    ids=["one rank", "two", "four on two KV heads", "four on eight"],
)
def test_a_llama_on_ranks_is_the_reference_within_the_tolerance(world_size: int, kv_heads: int, processes: Processes) -> None:
    model = ModelSpec(seed=3, shape=replace(SHAPE, num_kv_heads=kv_heads))
    weights = weights_of(model)
    oracle = CachedOracle("the reference", lambda tokens, begin: reference_logits(weights, tokens, begin=begin))
    ran = run_on_ranks(model, world_size, processes, Setting("plain", is_warm=True, preempts_at=(2,)))
    assert ran.reached["steps"] >= 10
    assert ran.reached["tokens from the cache"] > 0
    for each in ran.emitted:
        assert endings(each) is None
        assert against_oracle(each, oracle, tolerance_of(torch.float32)) is None


def test_all_parts_of_a_layer_together_are_the_layer() -> None:
    """Bit for bit: nothing is left out, repeated or reordered."""
    weights = tiny_random(replace(SHAPE, num_kv_heads=8), seed=1)
    parts = [shard(weights, rank, 4) for rank in range(4)]
    for number, layer in enumerate(weights.layers):
        for name, dim in (("q", 0), ("k", 0), ("v", 0), ("gate", 0), ("up", 0), ("o", 1), ("down", 1)):
            whole = torch.cat([getattr(part.layers[number], name) for part in parts], dim=dim)
            assert torch.equal(whole, getattr(layer, name)), name


def test_kv_heads_fewer_than_ranks_stand_where_their_queries_are() -> None:
    """Query head h reads KV head h // 4: ranks 0 and 1 hold the queries of the first, 2 and 3 those of the second."""
    weights = tiny_random(SHAPE, seed=1)
    size, k = SHAPE.head_size, weights.layers[0].k
    for rank in range(4):
        part = shard(weights, rank, 4)
        assert (part.config.num_heads, part.config.num_kv_heads) == (2, 1)
        first = rank // 2 * size
        assert torch.equal(part.layers[0].k, k[first : first + size])


@pytest.mark.parametrize(
    ("shape", "world_size", "rule"),
    [
        (replace(SHAPE, num_heads=9, num_kv_heads=3), 2, "num_heads (9) is a multiple of the ranks, found 2 ranks"),
        (replace(SHAPE, num_heads=12, num_kv_heads=3), 2, "num_kv_heads (3) is a multiple of the ranks, or the ranks of it"),
        (replace(SHAPE, intermediate_size=30), 4, "intermediate_size (30) is a multiple of the ranks"),
    ],
    ids=["heads", "KV heads", "the feed-forward"],
)
def test_a_shape_that_can_not_be_split_evenly_is_refused_in_a_sentence(shape: LlamaConfig, world_size: int, rule: str) -> None:
    with pytest.raises(ConfigError) as refused:
        shard_config(shape, world_size)
    assert rule in str(refused.value)


def test_a_group_says_why_its_model_can_not_be_split(processes: Processes) -> None:
    config = RankConfig(2, RandomLlama(asdict(replace(SHAPE, num_heads=9, num_kv_heads=3)), 0), 8, 4)
    with pytest.raises(RankLost, match=r"failed: ConfigError: a Llama is split evenly: num_heads \(9\)"):
        Ranks(config, processes)


def test_the_parts_of_an_adapter_add_up_to_it() -> None:
    """Where rows are split they stand one behind the other; where columns are, the products are summed."""
    shape = replace(SHAPE, num_kv_heads=8)
    lora = random_lora(shape, 3, dtype=torch.float64)
    parts = [shard_lora(lora, shape, rank, 4) for rank in range(4)]
    for number, layer in enumerate(lora.layers):
        for name, (a, b) in layer.items():
            each = [part.layers[number][name] for part in parts]
            products = [part.b @ part.a for part in each]
            whole = sum(
                torch.nn.functional.pad(product, (rank * product.shape[1], a.shape[1] - (rank + 1) * product.shape[1]))
                for rank, product in enumerate(products)
            ) if name in ("o", "down") else torch.cat(products)  # fmt: skip
            assert torch.allclose(torch.as_tensor(whole), b @ a, rtol=0, atol=1e-12), name


def small(**more: Any) -> RankConfig:
    return RankConfig(2, RandomLlama(asdict(SHAPE), 3), 32, 4, **more)


@pytest.mark.parametrize(
    ("config", "max_rank", "sentence"),
    [
        (small(num_adapter_slots=2), None, "found num_adapter_slots 2 and no library; give both or neither"),
        (small(), 16, "found num_adapter_slots 0 and a library; give both or neither"),
        (small(num_adapter_slots=2), 32, "found max_adapter_rank 16 for a library of up to 32; raise it"),
        (RankConfig(2, FingerprintModel(64), 32, 4), 16, "the fingerprint model has no weights, found a library of adapters"),
    ],
    ids=["slots without weights", "weights without slots", "too small slots", "a model without weights"],
)
def test_adapters_that_ranks_can_not_have_are_refused(config: RankConfig, max_rank: int | None, sentence: str) -> None:
    library = None if max_rank is None else AdapterLibrary(SHAPE, max_rank)
    with pytest.raises(ConfigError) as refused:
        Ranks(config, adapters=library)
    assert sentence in str(refused.value)


def test_texts_of_another_vocabulary_end_the_group_with_a_sentence(processes: Processes) -> None:
    with pytest.raises(RankLost, match=f"bytes of each token of the model, {VOCAB} tokens, found 1; hand in those of this"):
        Ranks(small(grammar_texts=(b"a",)), processes)


def test_an_adapter_without_weights_ends_its_request_and_ranks_go_on(processes: Processes) -> None:
    config = EngineConfig(num_blocks=32, block_size=4, vocab_size=VOCAB, adapters=(Adapter("a", 1),))
    with Ranks(small(num_adapter_slots=4), processes, adapters=AdapterLibrary(SHAPE)) as group:
        engine = Engine(config, group)
        engine.submit(Request("bad", (1, 2), SamplingParams(max_tokens=2), adapter=Adapter("a", 1)))
        engine.submit(Request("good", (1, 2), SamplingParams(max_tokens=2)))
        for _ in range(9):
            engine.step()
        ends = {each.request_id: (each.finish_reason, each.message) for each in engine.take_outputs() if each.finish_reason}
    assert ends["good"][0] is FinishReason.LENGTH
    assert ends["bad"][0] is FinishReason.ERROR
    assert "the weights of an adapter must be in the library before requests name it" in ends["bad"][1]
