"""A GGUF file, read through the `gguf` library: its metadata by key, its tensors as float32, its Llama.

Owns: what of the format is accepted, and the sentence for everything that is not. Never: a tokenizer, or another format.

The library reads a mapped file and trusts it: behind the end of a truncated one it finds empty arrays. Here every read is
checked against the size of the file first, so that a truncated or corrupt file is named instead of misread.
Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from gguf import GGUFReader, GGUFValueType, ReaderTensor, dequantize

from engine_under_test.errors import BadInput, ConfigError
from engine_under_test.model.weights import LayerWeights, LlamaConfig, LlamaWeights

# What else changes a model where it is said, and what leaves it as it is: a factor needs no type of scaling beside it.
_PLAIN: Mapping[str, tuple[float, ...]] = {
    "rope.scaling.factor": (0.0, 1.0), "rope.scale_linear": (0.0, 1.0), "attention.scale": (0.0,), "logit_scale": (0.0, 1.0),
    "residual_scale": (0.0, 1.0), "embedding_scale": (0.0, 1.0), "expert_count": (0,),
}  # fmt: skip
Value = TypeVar("Value")

MAGIC = b"GGUF"
_LONGEST_ARRAY = 1 << 24  # elements: some sixty times the largest vocabulary in use; more is a corrupt length
_LAYER_NAMES = {
    "attention_norm": "attn_norm", "q": "attn_q", "k": "attn_k", "v": "attn_v", "o": "attn_output",
    "mlp_norm": "ffn_norm", "gate": "ffn_gate", "up": "ffn_up", "down": "ffn_down",
}  # fmt: skip


class GgufFile:
    """An open file. Raises BadInput if it can not be read as GGUF; reading it takes a few seconds for a large vocabulary."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._reader = _CheckedReader(path)
        except OSError as error:
            raise BadInput(f"a model file must be readable, but {path} is not: {error.strerror or error}") from error
        except (ValueError, KeyError, IndexError, OverflowError, MemoryError) as error:  # numbers that can not be meant
            raise self._damaged(error) from error
        self._tensors = {tensor.name: tensor for tensor in self._reader.tensors}
        self._metadata: dict[str, Any] = {}

    def find(self, key: str, kind: type[Value]) -> Value | None:
        """The value of a metadata key, or None where the file has no such key; BadInput if it is not of that kind."""
        if key not in self._metadata:
            field = self._reader.get_field(key)
            try:
                self._metadata[key] = None if field is None else field.contents()
            except ValueError as error:
                raise self._damaged(f"the value of {key} is not UTF-8 text") from error
        value = self._metadata[key]
        if value is None or type(value) is kind:
            return value
        raise BadInput(
            f"{key} in a GGUF file must be of type {kind.__name__}, found {type(value).__name__} in {self.path}; "
            "use another file"
        )

    def get(self, key: str, kind: type[Value]) -> Value:
        """The value of a metadata key that a file must have."""
        value = self.find(key, kind)
        if value is None:
            raise BadInput(f"a GGUF file must say {key}, but {self.path} does not; convert the model again with a current tool")
        return value

    @property
    def tensor_names(self) -> tuple[str, ...]:
        return tuple(self._tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        """Outermost dimension first, as torch counts (the file counts from the innermost one)."""
        return tuple(int(size) for size in reversed(self._tensor(name).shape))

    def tensor(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        """A tensor as finite float32 of the given shape."""
        if (found := self.shape(name)) != shape:
            raise BadInput(f"{name} must have shape {list(shape)} as its metadata say, found {list(found)} in {self.path}")
        stored = self._tensor(name)
        try:
            values = dequantize(stored.data, stored.tensor_type)
        except (NotImplementedError, ValueError) as error:  # no conversion from this type; rows that are no whole blocks of it
            raise BadInput(
                f"the type of a tensor must be one that the gguf library can turn into floats, "
                f"found {stored.tensor_type.name} for {name} in {self.path}; convert the model to F16 or Q8_0"
            ) from error
        tensor = torch.from_numpy(np.array(values, dtype=np.float32).reshape(shape))
        if not bool(tensor.isfinite().all()):
            raise BadInput(f"weights must be finite, but {name} in {self.path} has infinities or NaN: fetch the file again")
        return tensor

    def _tensor(self, name: str) -> ReaderTensor:
        try:
            return self._tensors[name]
        except KeyError:
            raise BadInput(
                f"a Llama must have a tensor {name}, but {self.path} has none; "
                "it is of another architecture or incomplete, use another file"
            ) from None

    def _damaged(self, reason: object) -> BadInput:
        said = reason.args[0] if isinstance(reason, KeyError) and reason.args else reason  # str() of a KeyError adds quotes
        return BadInput(
            f"a GGUF file must be whole, but {self.path} is truncated, corrupt or of an unknown kind ({said}): fetch it again"
        )


def llama_of(file: GgufFile) -> LlamaWeights:
    """The Llama in a GGUF file, in float32."""
    config = llama_config(file)
    heads, kv_heads, head, hidden = config.num_heads, config.num_kv_heads, config.head_size, config.hidden_size
    inner, norm = config.intermediate_size, (hidden,)
    shapes = {
        "attention_norm": norm, "q": (heads * head, hidden), "k": (kv_heads * head, hidden), "v": (kv_heads * head, hidden),
        "o": (hidden, heads * head), "mlp_norm": norm, "gate": (inner, hidden), "up": (inner, hidden), "down": (hidden, inner),
    }  # fmt: skip
    _refuse_foreign_tensors(file, config)

    def layer(index: int) -> LayerWeights:
        drawn = {name: file.tensor(f"blk.{index}.{_LAYER_NAMES[name]}.weight", shape) for name, shape in shapes.items()}
        drawn["q"], drawn["k"] = by_halves(drawn["q"], heads), by_halves(drawn["k"], kv_heads)
        return LayerWeights(**drawn)

    embedding = file.tensor("token_embd.weight", (config.vocab_size, hidden))
    layers = tuple(layer(index) for index in range(config.num_layers))
    head_weights = embedding if config.ties_head else file.tensor("output.weight", (config.vocab_size, hidden))
    return LlamaWeights(config, embedding, layers, file.tensor("output_norm.weight", norm), head_weights)


def llama_config(file: GgufFile) -> LlamaConfig:
    """The shape that the metadata state; BadInput for everything that this engine would compute wrongly."""
    if (architecture := file.get("general.architecture", str)) != "llama":
        raise BadInput(f"the architecture of a model must be llama, found {architecture!r} in {file.path}; use a Llama")
    scaling = file.find("llama.rope.scaling.type", str)
    if scaling not in {None, "none"} or "rope_freqs.weight" in file.tensor_names:
        raise BadInput(
            f"rotary positions must not be scaled, found {scaling or 'rope_freqs.weight'!r} in {file.path}; use another model"
        )
    for name, plain in _PLAIN.items():
        if (said := file.find(f"llama.{name}", type(plain[0]))) is not None and said not in plain:
            raise BadInput(f"llama.{name} must be {plain[-1]:g} or left out, found {said:g} in {file.path}; use another model")
    heads, hidden = file.get("llama.attention.head_count", int), file.get("llama.embedding_length", int)
    kv_heads = file.find("llama.attention.head_count_kv", int)
    head_size = file.find("llama.attention.key_length", int) or hidden // max(heads, 1)
    turned = file.find("llama.rope.dimension_count", int)
    if turned not in {None, head_size} or file.find("llama.attention.value_length", int) not in {None, head_size}:
        raise BadInput(
            f"keys, values and rotated dimensions of a head must be as many, found key {head_size}, rotated {turned}, "
            f"value {file.find('llama.attention.value_length', int)} in {file.path}; use another model"
        )
    try:
        return LlamaConfig(
            vocab_size=file.shape("token_embd.weight")[0],
            hidden_size=hidden,
            num_layers=file.get("llama.block_count", int),
            num_heads=heads,
            num_kv_heads=heads if kv_heads is None else kv_heads,
            head_size=head_size,
            intermediate_size=file.get("llama.feed_forward_length", int),
            rope_theta=_short(file.find("llama.rope.freq_base", float) or 10000.0),
            rms_eps=_short(file.get("llama.attention.layer_norm_rms_epsilon", float)),
            max_positions=file.get("llama.context_length", int),
            ties_head="output.weight" not in file.tensor_names,
        )
    except ConfigError as error:
        raise BadInput(f"{error} ({file.path})") from error


def by_halves(weight: torch.Tensor, num_heads: int) -> torch.Tensor:
    """Rows of queries or keys [heads * head, hidden] from the order of a GGUF file to that of the rotation by halves.

    A GGUF Llama turns neighbours, so that rows 2i and 2i + 1 of a head are a pair; here rows i and i + head / 2 are:

        file   a0 b0 a1 b1 a2 b2 ..   ->   a0 a1 a2 .. b0 b1 b2 ..
    """
    rows, hidden = weight.shape
    pairs = weight.view(num_heads, rows // num_heads // 2, 2, hidden)
    return pairs.transpose(1, 2).reshape(rows, hidden)


def _refuse_foreign_tensors(file: GgufFile, config: LlamaConfig) -> None:
    """Biases, experts, adapters: a tensor that nothing would read means that the result would be wrong."""
    known = {"token_embd.weight", "output_norm.weight", "output.weight"}
    known |= {f"blk.{index}.{name}.weight" for index in range(config.num_layers) for name in _LAYER_NAMES.values()}
    if foreign := sorted(set(file.tensor_names) - known):
        raise BadInput(
            f"a Llama must consist of its known tensors, found {foreign[0]!r}"
            f"{f' and {len(foreign) - 1} more' if len(foreign) > 1 else ''} in {file.path}; "
            "use a model without biases or experts"
        )


def _short(stored: float) -> float:
    """The shortest decimal that is the same float32: 1e-5, where the file's float32 widens to 9.99999974e-06."""
    return float(str(np.float32(stored)))


class _CheckedReader(GGUFReader):
    """The library's reader, refusing to look behind the end of the file.

    It overrides the two internal helpers through which all reads go; a version of the library without them fails the
    tests of truncated files.
    """

    def _get(
        self,
        offset: int,
        dtype: npt.DTypeLike,
        count: int = 1,
        override_order: Literal["I", "S", "<"] | None = None,
    ) -> npt.NDArray[Any]:
        if isinstance(self.data, np.memmap):
            # Mapped all the same, and much faster to slice, which is all that is done with it.
            self.data = self.data.view(np.ndarray)  # type: ignore[assignment] # a memmap is an ndarray
        end = int(offset) + np.dtype(dtype).itemsize * int(count)
        if end > len(self.data):
            raise ValueError(f"it ends at byte {len(self.data)}, but names something up to byte {end}")
        return super()._get(offset, dtype, count, override_order)

    def _get_field_parts(
        self, orig_offs: int, raw_type: int
    ) -> tuple[int, list[npt.NDArray[Any]], list[int], list[GGUFValueType]]:
        # As plain numbers: numpy would look for attributes of the enumeration, and throw away a Ctrl-C that comes meanwhile.
        is_array = int(raw_type) == GGUFValueType.ARRAY.value
        if is_array and (length := int(self._get(orig_offs + 4, np.uint64)[0])) > _LONGEST_ARRAY:
            raise ValueError(f"an array of {length} elements")
        return super()._get_field_parts(orig_offs, raw_type)
