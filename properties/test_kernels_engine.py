"""An engine whose attention is the Triton kernels: same tokens as with attention in torch, with every kernel in use."""

from __future__ import annotations

import pytest
import torch

from engine_under_test import Engine, EngineConfig, Request, SamplingParams
from engine_under_test.execution import kernels
from engine_under_test.execution.attention import Attention, PagedTorch, PagedTriton
from engine_under_test.execution.transformer import TransformerRunner
from engine_under_test.model.weights import LlamaConfig, tiny_random
from properties.test_kernels import on_each_device

SHAPE = LlamaConfig(
    vocab_size=80, hidden_size=24, num_layers=2, num_heads=3, num_kv_heads=1, head_size=64, intermediate_size=32
)
WEIGHTS = tiny_random(SHAPE, 3)
SHARED = tuple(place * 11 % 80 for place in range(16))
REQUESTS = (
    Request("cold", (*SHARED, 5, 6, 7), SamplingParams(max_tokens=4)),
    Request("long", tuple(place * place % 80 for place in range(40)), SamplingParams(max_tokens=3)),
    Request("one", (3,), SamplingParams(max_tokens=5)),
    Request("cached", (*SHARED, 9), SamplingParams(max_tokens=3)),  # admitted when another has ended
)


def tokens_of(attention: Attention, device: str) -> dict[str, tuple[int, ...]]:
    """Chunks of at most 13 tokens, at most three requests at once."""
    config = EngineConfig(num_blocks=12, block_size=16, max_tokens_per_step=13, max_num_seqs=3, vocab_size=SHAPE.vocab_size)
    engine = Engine(config, TransformerRunner(WEIGHTS.to(device=device), 12, 16, attention=attention))
    for request in REQUESTS:
        assert engine.submit(request).is_accepted
    while engine.has_work:
        engine.step()
    assert engine.counters.cached_tokens >= 16
    tokens: dict[str, tuple[int, ...]] = {}
    for output in engine.take_outputs():
        tokens[output.request_id] = tokens.get(output.request_id, ()) + output.token_ids
    return tokens


@on_each_device
def test_tokens_are_those_of_attention_in_torch(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(1)
    calls = dict.fromkeys(("store_kv", "decode_attention", "prefill_attention"), 0)
    for name in calls:
        original = getattr(kernels, name)

        def counted(*arguments: object, name: str = name, original: object = original) -> object:
            calls[name] += 1
            assert callable(original)
            return original(*arguments)

        monkeypatch.setattr(kernels, name, counted)
    found = tokens_of(PagedTriton(), device)
    assert min(calls.values()) > 2, calls
    assert found == tokens_of(PagedTorch(), device)
    assert {name: len(tokens) for name, tokens in found.items()} == {"cold": 4, "cached": 3, "long": 3, "one": 5}
