"""Weights from wherever they lie: a GGUF file, or safetensors with their config.json; told apart by content, not by name.

Owns: the choice of the reader. Never: a format (`gguf_file.py`, `safetensors_file.py`), or where models lie (`fetch.py`).
"""

from __future__ import annotations

from pathlib import Path

import torch

from engine_under_test.errors import BadInput
from engine_under_test.model import safetensors_file
from engine_under_test.model.weights import LlamaWeights

_GGUF_MAGIC = b"GGUF"
_LENGTH_BYTES = 8  # a safetensors file begins with the length of its JSON header, little-endian


def load_weights(path: Path, dtype: torch.dtype = torch.float32) -> LlamaWeights:
    """The Llama in a GGUF file, a safetensors file (config.json beside it), or a folder that holds either of them.

    Tensors that are stored in `dtype` are mapped, not copied. Raises BadInput, in one sentence, for a file that is missing,
    truncated, corrupt, of an unknown type or of another architecture.
    """
    path = gguf_in(path) or path
    if path.is_dir():
        return safetensors_file.llama_of(path, safetensors_file.files_of(path), dtype)
    begin = _begin_of(path)
    if begin.startswith(_GGUF_MAGIC):
        from engine_under_test.model.gguf_file import GgufFile, llama_of

        return llama_of(GgufFile(path)).to(dtype=dtype)
    if begin[_LENGTH_BYTES:].startswith(b"{"):
        return safetensors_file.llama_of(path.parent, (path,), dtype)
    raise BadInput(
        f"a model file must begin as GGUF or safetensors do, found {begin[:4]!r} in {path}; name a file of one of these formats"
    )


def gguf_in(folder: Path) -> Path | None:
    """The only GGUF file of a folder that holds no safetensors; None where there is no such thing."""
    if not folder.is_dir() or (folder / safetensors_file.CONFIG).exists():
        return None
    files = sorted(folder.glob("*.gguf"))
    if len(files) > 1:
        raise BadInput(f"a model folder must hold one GGUF file, found {len(files)} in {folder}; name one of them")
    return files[0] if files else None


def _begin_of(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(_LENGTH_BYTES + 1)
    except OSError as error:
        raise BadInput(f"a model must be a readable file or folder, but {path} is not: {error.strerror or error}") from error
