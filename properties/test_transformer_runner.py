"""The transformer runner behind the engine: its tokens are those of a plain dense loop, however scheduled and paged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

import pytest
import torch
from torch.nn import functional

from engine_under_test import Engine, EngineConfig, FinishReason, Request, SamplingParams
from engine_under_test.execution.attention import Attention, Eager, PagedTorch
from engine_under_test.execution.transformer import TransformerRunner
from engine_under_test.model.weights import LlamaConfig, LlamaWeights, tiny_random

SHAPE = LlamaConfig(vocab_size=96, hidden_size=32, num_layers=2, num_heads=6, num_kv_heads=2, head_size=8, intermediate_size=40)
WEIGHTS = tiny_random(SHAPE, 1)
ENGINE = EngineConfig(num_blocks=48, block_size=4, max_tokens_per_step=11, max_num_seqs=5, vocab_size=SHAPE.vocab_size)

Key = tuple[str, int]


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


# ---- the plain loop: no cache, no batch, float64 ----


def dense_logits(weights: LlamaWeights, tokens: Sequence[int]) -> torch.Tensor:
    """[vocab] behind the last token, from all of them at once."""
    config = weights.config
    weights = weights.to(dtype=torch.float64)
    half, group = config.head_size // 2, config.num_heads // config.num_kv_heads
    turns = torch.arange(len(tokens))[:, None] * config.rope_theta ** -(torch.arange(half, dtype=torch.float64) / half)

    def norm(x: torch.Tensor, gain: torch.Tensor) -> torch.Tensor:
        return x / (x.square().mean(1, keepdim=True) + config.rms_eps).sqrt() * gain

    def turned(x: torch.Tensor) -> torch.Tensor:
        pairs = torch.complex(x[..., :half], x[..., half:]) * torch.polar(torch.ones_like(turns), turns)[:, None]
        return torch.cat((pairs.real, pairs.imag), dim=-1)

    x = weights.embedding[list(tokens)]
    is_later = torch.ones(len(tokens), len(tokens), dtype=torch.bool).triu(1)
    for layer in weights.layers:
        normed = norm(x, layer.attention_norm)
        q, k, v = ((normed @ matrix.T).reshape(len(tokens), -1, config.head_size) for matrix in (layer.q, layer.k, layer.v))
        heads = []
        for head in range(config.num_heads):
            scores = turned(q)[:, head] @ turned(k)[:, head // group].T / config.head_size**0.5
            heads.append(scores.masked_fill(is_later, -torch.inf).softmax(1) @ v[:, head // group])
        x = x + torch.cat(heads, dim=1) @ layer.o.T
        normed = norm(x, layer.mlp_norm)
        x = x + (functional.silu(normed @ layer.gate.T) * (normed @ layer.up.T)) @ layer.down.T
    return norm(x[-1:], weights.final_norm)[0] @ weights.head.T


@lru_cache(maxsize=4096)
def greedy_continuation(prompt: tuple[int, ...], num: int) -> tuple[int, ...]:
    tokens = list(prompt)
    for _ in range(num):
        tokens.append(int(dense_logits(WEIGHTS, tokens).argmax()))
    return tuple(tokens[len(prompt) :])


# ---- the engine ----


def prompt_of(length: int, salt: int = 0) -> tuple[int, ...]:
    return tuple((salt * 31 + place * place * 7 + place * 5) % SHAPE.vocab_size for place in range(length))


SHARED = prompt_of(9, 4)
REQUESTS = [
    Request("one", prompt_of(1, 1), SamplingParams(max_tokens=7)),
    Request("whole blocks", prompt_of(8, 2), SamplingParams(max_tokens=5)),
    Request("long", prompt_of(33, 3), SamplingParams(max_tokens=9)),
    Request("shared", SHARED + prompt_of(4, 5), SamplingParams(max_tokens=6)),
    Request("shared too", SHARED + prompt_of(6, 6), SamplingParams(max_tokens=6)),
    Request("forked", prompt_of(10, 7), SamplingParams(max_tokens=5, n=3)),
    Request("warm", prompt_of(12, 8), SamplingParams(max_tokens=6, temperature=0.8, top_p=0.9, seed=5, n=2)),
]


def drain(engine: Engine) -> dict[Key, tuple[int, ...]]:
    tokens: dict[Key, tuple[int, ...]] = {}
    for _ in range(2000):
        if not engine.has_work:
            break
        engine.step()
    assert not engine.has_work, "the engine did not come to its end"
    for output in engine.take_outputs():
        assert output.finish_reason in (None, FinishReason.LENGTH), output.message
        key = output.request_id, output.choice
        tokens[key] = tokens.get(key, ()) + output.token_ids
    return tokens


def run(config: EngineConfig, requests: Sequence[Request], attention: Attention | None = None) -> dict[Key, tuple[int, ...]]:
    runner = TransformerRunner(WEIGHTS, config.num_blocks, config.block_size, attention=attention)
    engine = Engine(config, runner)
    for request in requests:
        assert engine.submit(request).is_accepted
    return drain(engine)


@lru_cache(maxsize=1)
def alone() -> Mapping[Key, tuple[int, ...]]:
    """Each request on its own in a new engine, whole and never cached."""
    plain = replace(ENGINE, max_tokens_per_step=64, prefix_cache=False, batching=False, chunking=False)
    return {key: tokens for request in REQUESTS for key, tokens in run(plain, [request]).items()}


def test_greedy_tokens_are_those_of_the_dense_loop() -> None:
    for request in REQUESTS:
        if request.sampling.temperature == 0:
            for choice in range(request.sampling.n):
                expected = greedy_continuation(request.prompt, request.sampling.max_tokens)
                assert alone()[request.request_id, choice] == expected


SWITCHES = {
    "everything on": ENGINE,
    "depth 1": replace(ENGINE, max_plans_in_flight=2),
    "depth 2": replace(ENGINE, max_plans_in_flight=3),
    "no prefix cache": replace(ENGINE, prefix_cache=False),
    "no batching": replace(ENGINE, batching=False),
    "no chunking": replace(ENGINE, chunking=False, max_tokens_per_step=64),
    "chunks of odd sizes": replace(ENGINE, max_tokens_per_step=5, max_num_seqs=3, max_plans_in_flight=2),
    "so few blocks that requests are preempted": replace(ENGINE, num_blocks=12, max_plans_in_flight=2),
}


@pytest.mark.parametrize("attention", [PagedTorch, Eager], ids=["paged attention", "eager attention"])
@pytest.mark.parametrize("block_size", [1, 4, 16])
@pytest.mark.parametrize("config", SWITCHES.values(), ids=SWITCHES.keys())
def test_tokens_do_not_depend_on_how_a_request_is_scheduled(
    config: EngineConfig, block_size: int, attention: type[Attention]
) -> None:
    num_blocks = config.num_blocks * 4 // block_size
    config = replace(config, block_size=block_size, num_blocks=num_blocks)
    assert run(config, REQUESTS, attention()) == alone()


def test_the_scheduled_run_preempts_hits_and_forks() -> None:
    """The cases above would prove little if these never happened."""
    config = SWITCHES["so few blocks that requests are preempted"]
    engine = Engine(config, TransformerRunner(WEIGHTS, config.num_blocks, config.block_size))
    for request in REQUESTS:
        engine.submit(request)
    drain(engine)
    assert engine.counters.preempted > 0
    assert engine.counters.cached_tokens > 0
