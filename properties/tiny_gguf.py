"""Tiny models as GGUF files, written by the `gguf` library, and as split safetensors: for tests of whoever reads them.

Owns: the order and the names that a GGUF Llama has, written from the format's document and not from the reader. Never: a
promise about what is read.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import gguf
import numpy as np
import torch
from safetensors.torch import load_file, save_file

from engine_under_test.model.weights import LlamaConfig, LlamaWeights
from properties.scripted import byte_spelling

F32 = gguf.GGMLQuantizationType.F32
CONFIG = LlamaConfig(  # rows of 32 and 64: a block of a quantised type has 32 numbers
    vocab_size=288, hidden_size=64, num_layers=2, num_heads=4, num_kv_heads=2, head_size=16, intermediate_size=96,
    rope_theta=5000.0, rms_eps=1e-5, max_positions=128, ties_head=True,
)  # fmt: skip
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
NAMES = ("<é>", "<｜漢｜>", "[tö]")  # no ASCII; the characters of the first and the last spell bytes. The last is a user's
CHAT_TEMPLATE = (  # blocks on lines of their own, indented: none of that white space is meant
    "{% for message in messages %}\n"
    "    {% if message.role == 'tool' %}\n{{ raise_exception('no tools here') }}\n    {% endif %}\n"
    "{{ bos_token }}{{ message.role }}\n{{ message.content }}{{ eos_token }}\n"
    "{% endfor %}\n"
    "{% if add_generation_prompt %}\n{{ bos_token }}assistant\n{% endif %}\n"
)
MERGES = (
    "h e", "l l", "he ll", "hell o", "Ġ w", "o r", "Ġw or", "l d", "Ġwor ld", "Ġ Ġ", "Ġ t", "Ġt he",
    "ð Ł", "ðŁ ĺ", "Ã ©", "1 2", "Ġ 1",
)  # fmt: skip
Edit = Callable[[gguf.GGUFWriter], None]


def vocabulary() -> tuple[list[str], list[int]]:
    """Tokens and their types (1 normal, 3 control, 4 user-defined), as many as the model has rows."""
    tokens = [*SPECIAL, "<think>", *byte_spelling(), *(merge.replace(" ", "") for merge in MERGES)]
    kinds = [3, 3, 3, 4] + [1] * (len(tokens) - 4)
    tokens, kinds = [*tokens, *NAMES], [*kinds, 3, 3, 4]
    fill = [f"<unused{rank}>" for rank in range(CONFIG.vocab_size - len(tokens))]
    return tokens + fill, kinds + [3] * len(fill)


def write_gguf(
    path: Path,
    weights: LlamaWeights,
    kinds: Mapping[str, gguf.GGMLQuantizationType] | None = None,
    *,
    architecture: str = "llama",
    without: Sequence[str] = (),
    edit: Edit | None = None,
    has_tokenizer: bool = True,
) -> Path:
    """Writes a model and a tiny tokenizer. `kinds`: tensor name -> type, float32 where it says nothing; "" for every matrix.

    `without`: metadata keys and tensors to leave out; `edit` sees the writer before it writes.
    """
    writer = gguf.GGUFWriter(str(path), architecture)
    config = weights.config
    writer.add_block_count(config.num_layers)
    writer.add_context_length(config.max_positions)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_heads)
    writer.add_head_count_kv(config.num_kv_heads)
    writer.add_key_length(config.head_size)
    writer.add_rope_dimension_count(config.head_size)
    writer.add_rope_freq_base(config.rope_theta)
    writer.add_layer_norm_rms_eps(config.rms_eps)
    writer.add_vocab_size(config.vocab_size)
    if has_tokenizer:
        _add_tokenizer(writer)
    for name, tensor in tensors_of(weights).items():
        if name not in without:
            _add_tensor(writer, name, tensor, kinds or {})
    for key in without:
        writer.kv_data[0].pop(key, None)
    if edit is not None:
        edit(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def tensors_of(weights: LlamaWeights) -> dict[str, torch.Tensor]:
    """Every tensor under its name in a GGUF file, queries and keys in the order of neighbours."""
    config = weights.config
    found = {"token_embd.weight": weights.embedding, "output_norm.weight": weights.final_norm}
    found |= {} if config.ties_head else {"output.weight": weights.head}
    for index, layer in enumerate(weights.layers):
        named = {
            "attn_norm": layer.attention_norm, "attn_q": by_neighbours(layer.q, config.head_size),
            "attn_k": by_neighbours(layer.k, config.head_size), "attn_v": layer.v, "attn_output": layer.o,
            "ffn_norm": layer.mlp_norm, "ffn_gate": layer.gate, "ffn_up": layer.up, "ffn_down": layer.down,
        }  # fmt: skip
        found |= {f"blk.{index}.{name}.weight": tensor for name, tensor in named.items()}
    return found


def by_neighbours(weight: torch.Tensor, head_size: int) -> torch.Tensor:
    """Row by row: the pair (i, i + head / 2) of each head goes to (2 i, 2 i + 1)."""
    rows = []
    for begin in range(0, weight.shape[0], head_size):
        for place in range(head_size // 2):
            rows += [weight[begin + place], weight[begin + place + head_size // 2]]
    return torch.stack(rows)


def split_in_two(folder: Path) -> None:
    """Spreads a folder's weights over two files with an index."""
    tensors = load_file(folder / "model.safetensors")
    tensors = {name: tensor.clone() for name, tensor in tensors.items()}
    names = sorted(tensors)
    parts = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    (folder / "model.safetensors").unlink()
    for part, members in parts.items():
        save_file({name: tensors[name] for name in members}, folder / part)
    index = {"weight_map": {name: part for part, members in parts.items() for name in members}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")


def _add_tensor(
    writer: gguf.GGUFWriter, name: str, tensor: torch.Tensor, kinds: Mapping[str, gguf.GGMLQuantizationType]
) -> None:
    kind = kinds.get(name, kinds.get("", F32) if tensor.ndim > 1 else F32)
    values = tensor.to(torch.float32).numpy()
    writer.add_tensor(name, values if kind is F32 else np.asarray(gguf.quantize(values, kind)), raw_dtype=kind)


def _add_tokenizer(writer: gguf.GGUFWriter) -> None:
    tokens, kinds = vocabulary()
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges(list(MERGES))
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    writer.add_add_bos_token(False)
    writer.add_add_space_prefix(False)
    writer.add_chat_template(CHAT_TEMPLATE)
