"""Both oracles say the same, whatever the shape; each is one dense pass, and refuses what it can not do in a sentence."""

from __future__ import annotations

import random
import subprocess
import sys
from itertools import combinations

import pytest
import torch

from differential.hf_oracle import HfOracle
from differential.reference import Rounding, reference_logits
from engine_under_test.errors import BadInput
from engine_under_test.model.weights import LlamaConfig, LlamaWeights, tiny_random

VOCAB = 53
TOKENS = tuple(random.Random(1).choices(range(VOCAB), k=40))
SHAPES = {
    "one query head on a KV head, tied": (4, 4, True, 1e4),
    "two, untied": (4, 2, False, 1e5),
    "three on the only one, tied": (3, 1, True, 1e4),
}


def tiny(heads: int, kv_heads: int, ties_head: bool, theta: float, dtype: torch.dtype = torch.float32) -> LlamaWeights:
    shape = LlamaConfig(VOCAB, 48, 2, heads, kv_heads, 16, 64, rope_theta=theta, ties_head=ties_head)
    return tiny_random(shape, 3, dtype)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=list(SHAPES))
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32 weights", "bfloat16 weights"])
def test_both_oracles_agree(shape: tuple[int, int, bool, float], dtype: torch.dtype) -> None:
    weights = tiny(*shape, dtype)
    own = reference_logits(weights, TOKENS)
    spread = own.std(dim=1, keepdim=True)
    for oracle in (HfOracle(weights, torch.float64), HfOracle(weights, torch.float32)):
        assert ((oracle.logits(TOKENS).double() - own).abs() / spread).max() < 1e-5
    assert ((reference_logits(weights, TOKENS, torch.float32).double() - own).abs() / spread).max() < 1e-5


def test_another_weight_changes_both_oracles() -> None:
    weights = tiny(4, 2, False, 1e4)
    own, others = reference_logits(weights, TOKENS), HfOracle(weights).logits(TOKENS)
    weights.layers[1].down[3, 4] += 1.0
    assert (reference_logits(weights, TOKENS) - own).abs().max() > 1e-2
    assert (HfOracle(weights).logits(TOKENS) - others).abs().max() > 1e-2


@pytest.mark.parametrize("begin", [0, 7, len(TOKENS) - 1])
def test_the_rows_from_a_position_on_are_those_of_the_whole(begin: int) -> None:
    weights = tiny(4, 2, False, 1e4)
    assert torch.allclose(reference_logits(weights, TOKENS, begin=begin), reference_logits(weights, TOKENS)[begin:])
    assert HfOracle(weights).logits(TOKENS, begin=begin).shape == (len(TOKENS) - begin, VOCAB)


def test_what_comes_later_is_not_seen() -> None:
    weights = tiny(4, 2, False, 1e4)
    other = (*TOKENS[:20], *reversed(TOKENS[20:]))
    ours, theirs = reference_logits(weights, TOKENS), reference_logits(weights, other)
    assert torch.equal(ours[:20], theirs[:20])
    assert not torch.allclose(ours[20:], theirs[20:])


@pytest.mark.parametrize("shape", SHAPES.values(), ids=list(SHAPES))
def test_in_bfloat16_the_reference_rounds_where_the_published_models_round(shape: tuple[int, int, bool, float]) -> None:
    weights = tiny(*shape, torch.bfloat16)
    exact = reference_logits(weights, TOKENS)
    ours = reference_logits(weights, TOKENS, torch.bfloat16).double()
    theirs = HfOracle(weights, torch.bfloat16).logits(TOKENS).double()
    assert (ours - theirs).square().mean() < 0.2**2 * (ours - exact).square().mean()
    assert ours.ne(theirs).any(dim=1).float().mean() < 0.5


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
def test_where_attention_rounds_matters_in_bfloat16_alone(dtype: torch.dtype) -> None:
    weights = tiny(4, 2, True, 1e4, torch.bfloat16)
    for rounding in Rounding:
        found = reference_logits(weights, TOKENS, dtype, rounding=rounding)
        assert torch.allclose(found.double(), reference_logits(weights, TOKENS), rtol=1e-4, atol=1e-4)
    passes = [reference_logits(weights, TOKENS, torch.bfloat16, rounding=rounding) for rounding in Rounding]
    assert not any(torch.equal(one, other) for one, other in combinations(passes, 2))


def test_a_type_that_the_reference_does_not_compute_in_is_refused() -> None:
    with pytest.raises(ValueError, match=r"float64, float32 or bfloat16, found torch.float16"):
        reference_logits(tiny(4, 2, True, 1e4), TOKENS, torch.float16)


def test_a_missing_extra_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(BadInput, match=r"needs the extra `reference`.*; say pip install"):
        HfOracle(tiny(4, 2, True, 1e4))


def test_the_reference_shares_no_arithmetic_with_the_engine() -> None:
    code = (
        "import sys, differential.reference; "
        "print(sorted(m for m in sys.modules if m.startswith(('engine_under_test.model', 'engine_under_test.execution.tr'))))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['engine_under_test.model', 'engine_under_test.model.weights']"
