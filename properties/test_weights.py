"""What a file of weights says is what the engine computes with, and what `transformers` would compute with."""

from __future__ import annotations

import struct
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch

from engine_under_test.model.fetch import gguf_of, model_folder
from engine_under_test.model.load import load_weights
from engine_under_test.model.safetensors_file import save_llama
from engine_under_test.model.weights import LayerWeights, LlamaWeights, tiny_random
from properties.tiny_gguf import CONFIG, split_in_two, tensors_of, write_gguf

Kind = gguf.GGMLQuantizationType
TIED = tiny_random(CONFIG, seed=1)
UNTIED = tiny_random(replace(CONFIG, ties_head=False), seed=2)


def assert_same(found: LlamaWeights, expected: LlamaWeights, *, atol: float = 0.0) -> None:
    assert found.config == expected.config
    pairs = [(getattr(found, name), getattr(expected, name), name) for name in ("embedding", "final_norm", "head")]
    for index, (left, right) in enumerate(zip(found.layers, expected.layers, strict=True)):
        pairs += [
            (getattr(left, field.name), getattr(right, field.name), f"{index}.{field.name}") for field in fields(LayerWeights)
        ]
    for left, right, name in pairs:
        assert left.dtype == right.dtype, name
        assert float((left.float() - right.float()).abs().max()) <= atol, name


@pytest.fixture
def real() -> Path:
    folder = model_folder()
    if folder is None:
        pytest.skip("the real model is not here: run `assay model fetch` once")
    return folder


# What is read


@pytest.mark.parametrize("weights", [pytest.param(TIED, id="a tied head"), pytest.param(UNTIED, id="a head of its own")])
def test_a_gguf_file_of_floats_is_read_bit_for_bit(tmp_path: Path, weights: LlamaWeights) -> None:
    assert_same(load_weights(write_gguf(tmp_path / "tiny.gguf", weights)), weights)


@pytest.mark.parametrize(
    "kind", [Kind.F16, Kind.BF16, Kind.Q8_0, Kind.Q4_1, Kind.Q4_0, Kind.Q5_1], ids=lambda kind: str(kind.name)
)
def test_a_gguf_file_of_another_type_is_read_to_the_precision_of_the_type(tmp_path: Path, kind: Kind) -> None:
    """Half a step of the coarsest block, which spans about six standard deviations of 0.25 or, the embedding, of 1."""
    atol = {Kind.F16: 4e-3, Kind.BF16: 2e-2, Kind.Q8_0: 2e-2, Kind.Q4_1: 0.3, Kind.Q4_0: 0.6, Kind.Q5_1: 0.15}[kind]
    assert_same(load_weights(write_gguf(tmp_path / "tiny.gguf", TIED, {"": kind})), TIED, atol=atol)


def test_blocks_of_four_bits_mean_what_the_format_says(tmp_path: Path) -> None:
    """Q4_1: 32 numbers as scale and minimum in float16, then 16 bytes; low halves come first (ggml-common.h)."""
    path = write_gguf(tmp_path / "tiny.gguf", TIED, {"": Kind.Q4_1})
    stored = next(tensor for tensor in gguf.GGUFReader(path).tensors if tensor.name == "blk.1.ffn_down.weight")
    raw = stored.data.tobytes()[:20]
    scale, minimum = struct.unpack("<ee", raw[:4])
    numbers = [byte & 15 for byte in raw[4:]] + [byte >> 4 for byte in raw[4:]]
    expected = torch.tensor([np.float32(scale) * np.float32(number) + np.float32(minimum) for number in numbers])
    torch.testing.assert_close(load_weights(path).layers[1].down[0, :32], expected, rtol=0, atol=0)


def test_queries_and_keys_score_as_the_neighbours_of_the_file_do(tmp_path: Path) -> None:
    """Turning neighbours with the file's rows, and halves with the loaded ones, gives the same products at all positions."""
    loaded = load_weights(write_gguf(tmp_path / "tiny.gguf", TIED))
    file = tensors_of(TIED)
    hidden = torch.randn(5, CONFIG.hidden_size, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    for index, layer in enumerate(loaded.layers):
        stored = [hidden @ file[f"blk.{index}.attn_{name}.weight"].double().T for name in "qk"]
        own = [hidden @ weight.double().T for weight in (layer.q, layer.k)]
        queries, keys = (_turned(states, [0, 1]) for states in stored)
        own_queries, own_keys = (_turned(states, [0, CONFIG.head_size // 2]) for states in own)
        torch.testing.assert_close(_scores(own_queries, own_keys), _scores(queries, keys))


def _turned(states: torch.Tensor, pair: list[int]) -> torch.Tensor:
    """[n, heads, head], each row turned by its position. `pair`: where the first pair of a head stands."""
    heads = states.view(len(states), -1, CONFIG.head_size).clone()
    step = 2 if pair == [0, 1] else 1
    for place in range(CONFIG.head_size // 2):
        first, second = pair[0] + step * place, pair[1] + step * place
        for position in range(len(states)):
            angle = torch.tensor(position * CONFIG.rope_theta ** (-2 * place / CONFIG.head_size))
            left, right = heads[position, :, first].clone(), heads[position, :, second].clone()
            heads[position, :, first] = left * angle.cos() - right * angle.sin()
            heads[position, :, second] = left * angle.sin() + right * angle.cos()
    return heads


def _scores(queries: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    return torch.einsum("qhd,khd->hqk", queries, keys.repeat_interleave(CONFIG.num_heads // CONFIG.num_kv_heads, dim=1))


@pytest.mark.parametrize("weights", [pytest.param(TIED, id="a tied head"), pytest.param(UNTIED, id="a head of its own")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_what_is_saved_is_read_again_bit_for_bit(tmp_path: Path, weights: LlamaWeights, dtype: torch.dtype) -> None:
    save_llama(weights.to(dtype=dtype), tmp_path)
    assert_same(load_weights(tmp_path, dtype), weights.to(dtype=dtype))
    assert_same(load_weights(tmp_path / "model.safetensors", dtype), weights.to(dtype=dtype))


def test_a_model_in_several_files_is_read_through_its_index(tmp_path: Path) -> None:
    save_llama(UNTIED, tmp_path)
    split_in_two(tmp_path)
    assert_same(load_weights(tmp_path), UNTIED)


def test_weights_in_the_wanted_type_are_mapped_and_a_tied_head_is_the_embedding(tmp_path: Path) -> None:
    save_llama(TIED, tmp_path)
    loaded = load_weights(tmp_path)
    assert loaded.head is loaded.embedding
    assert load_weights(tmp_path, torch.bfloat16).head.dtype is torch.bfloat16


# By others: transformers


def test_transformers_reads_the_same_weights(tmp_path: Path) -> None:
    """Both from the GGUF file, and from the folder that it was converted to."""
    from transformers import LlamaForCausalLM

    write_gguf(tmp_path / "tiny.gguf", UNTIED, {"": Kind.Q8_0})
    loaded = load_weights(tmp_path / "tiny.gguf")
    save_llama(loaded, tmp_path / "converted")
    _assert_theirs(LlamaForCausalLM.from_pretrained(tmp_path, gguf_file="tiny.gguf", dtype=torch.float32), loaded)
    _assert_theirs(LlamaForCausalLM.from_pretrained(tmp_path / "converted", dtype=torch.float32), loaded)


def test_transformers_reads_the_same_weights_of_the_real_model(real: Path, tmp_path: Path) -> None:
    """From the GGUF file alone: none of what it was converted to stands beside it."""
    from transformers import LlamaForCausalLM

    (tmp_path / "model.gguf").symlink_to(gguf_of(real))
    _assert_theirs(LlamaForCausalLM.from_pretrained(tmp_path, gguf_file="model.gguf", dtype=torch.float32), load_weights(real))


def _assert_theirs(theirs: Any, loaded: LlamaWeights) -> None:
    config = theirs.config
    assert config.rms_norm_eps == pytest.approx(loaded.config.rms_eps, rel=1e-7)
    assert config.rope_parameters["rope_theta"] == pytest.approx(loaded.config.rope_theta)
    state = theirs.state_dict()
    save = {
        "model.embed_tokens.weight": loaded.embedding,
        "model.norm.weight": loaded.final_norm,
        "lm_head.weight": loaded.head,
    }
    for index, layer in enumerate(loaded.layers):
        names = {"q": "self_attn.q_proj", "k": "self_attn.k_proj", "v": "self_attn.v_proj", "o": "self_attn.o_proj"}
        names |= {"gate": "mlp.gate_proj", "up": "mlp.up_proj", "down": "mlp.down_proj"}
        names |= {"attention_norm": "input_layernorm", "mlp_norm": "post_attention_layernorm"}
        save |= {f"model.layers.{index}.{theirs_}.weight": getattr(layer, ours) for ours, theirs_ in names.items()}
    assert set(save) == set(state)
    for name, tensor in save.items():
        assert torch.equal(state[name], tensor), name
