"""A file of weights that can not be used is answered by one sentence, and never misread."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from engine_under_test.errors import BadInput
from engine_under_test.model.load import load_weights
from engine_under_test.model.safetensors_file import save_llama
from engine_under_test.model.weights import tiny_random
from properties.tiny_gguf import CONFIG, split_in_two, tensors_of, write_gguf

Make = Callable[[Path], Path]
Damage = Callable[[Path], object]
TIED = tiny_random(CONFIG, seed=1)


def _edited(edit: Callable[[gguf.GGUFWriter], object], *without: str) -> Make:
    def make(folder: Path) -> Path:
        return write_gguf(folder / "tiny.gguf", TIED, without=without, edit=lambda writer: void(edit(writer)))

    def void(_answer: object) -> None:
        pass

    return make


def _set(key: str, value: int) -> Make:
    return _edited(lambda writer: writer.add_key_value(key, value, gguf.GGUFValueType.UINT32), key)


def _with_tensor(name: str) -> Make:
    return _edited(lambda writer: writer.add_tensor(name, np.ones(64, np.float32)))


def _without(*names: str) -> Make:
    return lambda folder: write_gguf(folder / "tiny.gguf", TIED, without=names)


def _cut(num_bytes: int) -> Make:
    def make(folder: Path) -> Path:
        path = write_gguf(folder / "tiny.gguf", TIED)
        path.write_bytes(path.read_bytes()[:num_bytes])
        return path

    return make


def _replaced(old: bytes, new: bytes) -> Make:
    def make(folder: Path) -> Path:
        path = write_gguf(folder / "tiny.gguf", TIED)
        content = path.read_bytes()
        assert content.count(old) >= 1
        path.write_bytes(content.replace(old, new, 1))
        return path

    return make


def _raw(content: bytes) -> Make:
    def make(folder: Path) -> Path:
        (folder / "file").write_bytes(content)
        return folder / "file"

    return make


def _nan(folder: Path) -> Path:
    embedding = TIED.embedding.clone()
    embedding[7, 7] = float("nan")
    return write_gguf(folder / "tiny.gguf", replace(TIED, embedding=embedding))


_QUERY = "blk.0.attn_q.weight"
_TENSOR_ENTRY = _QUERY.encode() + struct.pack("<IQQI", 2, 64, 64, 0)  # name, 2 dimensions, type F32
_LONG_ARRAY = b"tokenizer.ggml.tokens" + struct.pack("<IIQ", 9, 8, 288)


def _of_type(number: int) -> Make:
    return _replaced(_TENSOR_ENTRY, _TENSOR_ENTRY[:-4] + struct.pack("<I", number))


GGUF_CASES: list[tuple[str, Make, str]] = [
    ("a file that is not there", lambda folder: folder / "no.gguf", "but .*no.gguf is not: No such file"),
    ("an empty file", _raw(b""), "must begin as GGUF or safetensors do, found b''"),
    ("a foreign file", _raw(b"PK\3\4 a zip"), "must begin as GGUF or safetensors do"),
    ("a magic and nothing else", _raw(b"GGUF"), "truncated, corrupt"),
    ("a version of the future", _replaced(b"GGUF\3", b"GGUF\7"), "truncated, corrupt .* version 7"),
    ("a file cut in its metadata", _cut(200), "truncated, corrupt .*ends at byte 200"),
    ("a file cut in its tensors", _cut(300_000), "truncated, corrupt .*ends at byte 300000"),
    ("a wrong length", _replaced(_LONG_ARRAY, _LONG_ARRAY[:-8] + struct.pack("<Q", 1 << 60)), "array of 1152921504606846976"),
    ("an unknown tensor type", _of_type(999), "truncated, corrupt .*999"),
    ("a tensor of integers", _of_type(gguf.GGMLQuantizationType.I32), f"can turn into floats, found I32 for {_QUERY}"),
    ("a foreign architecture", lambda at: write_gguf(at / "t.gguf", TIED, architecture="gpt2"), "be llama, found 'gpt2'"),
    ("no number of layers", _without("llama.block_count"), "must say llama.block_count"),
    ("no number of heads", _without("llama.attention.head_count"), "must say llama.attention.head_count"),
    ("no epsilon", _without("llama.attention.layer_norm_rms_epsilon"), "must say llama.attention.layer_norm_rms_epsilon"),
    ("no architecture", _without("general.architecture"), "must say general.architecture"),
    ("a missing tensor", _without("blk.1.ffn_up.weight"), "must have a tensor blk.1.ffn_up.weight"),
    ("no embedding", _without("token_embd.weight"), "must have a tensor token_embd.weight"),
    ("a bias", _with_tensor("blk.0.attn_q.bias"), "found 'blk.0.attn_q.bias'"),
    ("scaled frequencies", _with_tensor("rope_freqs.weight"), "must not be scaled, found 'rope_freqs.weight'"),
    ("YaRN", _edited(lambda writer: writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)), "not be scaled, found 'yarn'"),
    ("a partial rotation", _set("llama.rope.dimension_count", 8), "found key 16, rotated 8"),
    ("values of another size", _set("llama.attention.value_length", 8), "value 8"),
    ("a number as text", _edited(lambda writer: writer.add_string("llama.block_count", "2"), "llama.block_count"), "found str"),
    ("heads that do not divide", _set("llama.attention.head_count_kv", 3), "must be a multiple"),
    ("no heads", _set("llama.attention.head_count", 0), "num_heads of a Llama must be an integer of at least 1, found 0"),
    ("a shape that differs", _set("llama.feed_forward_length", 128), r"shape \[128, 64\] .* found \[96, 64\]"),
    ("NaN", _nan, "must be finite, but token_embd.weight"),
]


@pytest.mark.parametrize(("make", "sentence"), [pytest.param(make, text, id=name) for name, make, text in GGUF_CASES])
def test_a_gguf_file_is_refused_in_one_sentence_for(tmp_path: Path, make: Make, sentence: str) -> None:
    with pytest.raises(BadInput, match=sentence) as caught:
        load_weights(make(tmp_path))
    assert "\n" not in str(caught.value)


def test_a_gguf_file_cut_anywhere_is_refused(tmp_path: Path) -> None:
    whole = write_gguf(tmp_path / "tiny.gguf", TIED).read_bytes()
    path = tmp_path / "cut.gguf"
    for length in [*range(4, 24), *range(24, len(whole), 17929), len(whole) - 64]:
        path.write_bytes(whole[:length])
        with pytest.raises(BadInput):
            load_weights(path)


def test_a_gguf_file_with_a_wrong_byte_is_read_or_refused_but_never_breaks_the_reader(tmp_path: Path) -> None:
    whole = write_gguf(tmp_path / "tiny.gguf", TIED).read_bytes()
    header = len(whole) - 4 * sum(tensor.numel() for tensor in tensors_of(TIED).values())
    path = tmp_path / "wrong.gguf"
    chance = random.Random(5)
    num_refused = 0
    for _ in range(60):
        content = bytearray(whole)
        for _byte in range(chance.randint(1, 3)):
            content[chance.randrange(header)] = chance.randrange(256)
        path.write_bytes(content)
        try:
            load_weights(path)
        except BadInput:
            num_refused += 1
    assert num_refused > 5


def _config(**changed: object) -> Damage:
    def damage(folder: Path) -> None:
        path = folder / "config.json"
        data = json.loads(path.read_text(encoding="utf-8")) | changed
        path.write_text(
            json.dumps({key: value for key, value in data.items() if value is not ...}, default=str), encoding="utf-8"
        )

    return damage


def _changed(change: Callable[[dict[str, torch.Tensor]], object]) -> Damage:
    def damage(folder: Path) -> None:
        tensors = {name: tensor.clone() for name, tensor in load_file(folder / "model.safetensors").items()}
        change(tensors)
        save_file(tensors, folder / "model.safetensors")

    return damage


def _shortened(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])


def _shard_gone(folder: Path) -> None:
    split_in_two(folder)
    (folder / "b.safetensors").unlink()


def _shard_elsewhere(folder: Path) -> None:
    split_in_two(folder)
    index = {"weight_map": {"model.norm.weight": "../b.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")


def _written(name: str, content: bytes) -> Damage:
    return lambda folder: (folder / name).write_bytes(content)


def _removed(name: str) -> Damage:
    return lambda folder: (folder / name).unlink()


def _with_part(name: str, tensor: torch.Tensor) -> Damage:
    return _changed(lambda tensors: tensors.update({name: tensor}))


FOLDER_CASES: list[tuple[str, Damage, str]] = [
    ("a truncated file", _shortened, "a safetensors file must be whole"),
    ("garbage", _written("model.safetensors", b"\xff" * 64), "a safetensors file must be whole"),
    ("no weights", _removed("model.safetensors"), "must hold model.safetensors or"),
    ("no config.json", _removed("config.json"), "must hold config.json"),
    ("a broken config.json", _written("config.json", b"{"), "config.json must be JSON"),
    ("a list for a config.json", _written("config.json", b"[]"), "a JSON object, found list"),
    ("a foreign architecture", _config(model_type="gemma2"), "must be llama, found 'gemma2'"),
    ("another activation", _config(hidden_act="gelu"), "hidden_act of a Llama must be 'silu'"),
    ("biases", _config(attention_bias=True), "attention_bias of a Llama must be False"),
    ("scaled positions", _config(rope_scaling={"rope_type": "llama3", "factor": 8.0}), "scaled, found 'llama3'"),
    ("a number as text", _config(num_hidden_layers="2"), "num_hidden_layers in config.json must be of type int"),
    ("a missing key", _config(hidden_size=None), "hidden_size in config.json must be of type int, found None"),
    ("heads that do not divide", _config(num_key_value_heads=3), "must be a multiple"),
    ("a layer too few", _config(num_hidden_layers=3), "must have a tensor model.layers.2"),
    ("a layer too many", _config(num_hidden_layers=1), "found 'model.layers.1.* and 8 more"),
    ("another vocabulary", _config(vocab_size=287), r"shape \[287, 64\]"),
    ("no head", _config(tie_word_embeddings=False), "must have a tensor lm_head.weight"),
    ("integers", _with_part("model.norm.weight", torch.ones(64, dtype=torch.int8)), "must be floats"),
    (
        "a bias",
        _with_part("model.layers.0.self_attn.q_proj.bias", torch.ones(64)),
        "found 'model.layers.0.self_attn.q_proj.bias'",
    ),
    ("a missing part", _shard_gone, "b.safetensors"),
    ("a part of another folder", _shard_elsewhere, "must name files of its own folder"),
]


@pytest.mark.parametrize(("damage", "sentence"), [pytest.param(damage, text, id=name) for name, damage, text in FOLDER_CASES])
def test_a_folder_is_refused_in_one_sentence_for(tmp_path: Path, damage: Damage, sentence: str) -> None:
    save_llama(TIED, tmp_path)
    damage(tmp_path)
    with pytest.raises(BadInput, match=sentence) as caught:
        load_weights(tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_a_weight_that_is_no_number_is_refused_with_its_place(tmp_path: Path, value: float) -> None:
    down = TIED.layers[-1].down.clone()
    down[3, 5] = value
    save_llama(replace(TIED, layers=(*TIED.layers[:-1], replace(TIED.layers[-1], down=down))), tmp_path)
    name = f"model.layers.{CONFIG.num_layers - 1}.mlp.down_proj.weight"
    with pytest.raises(BadInput, match=rf"finite as float32, but {name} in .* has infinities or NaN: fetch the file again"):
        load_weights(tmp_path)


def test_weights_that_a_narrow_type_can_not_hold_are_refused(tmp_path: Path) -> None:
    save_llama(replace(TIED, embedding=TIED.embedding * 1e6, head=TIED.head * 1e6), tmp_path)
    with pytest.raises(BadInput, match=r"finite as float16, but model\.embed_tokens\.weight .* load it in a wider type"):
        load_weights(tmp_path, torch.float16)
    assert load_weights(tmp_path).embedding.isfinite().all()
