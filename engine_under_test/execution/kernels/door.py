"""What the kernels accept, said before anything is launched: a kernel can not complain.

Owns the checks of shape, type and place, from what the host knows of a tensor. Never: a look at values (a slot or block out
of range is not noticed; that would wait for the device).
"""

from __future__ import annotations

import torch

from engine_under_test.errors import ConfigError

HEAD_SIZES = (64, 128)
DTYPES = (torch.float32, torch.bfloat16)
BLOCK_MULTIPLE = 16  # so that no tile of positions meets more than a few blocks, and slots of a block lie aligned
INDEX_DTYPES = (torch.int32,)
SLOT_DTYPES = (torch.int32, torch.int64)


def check_cache(key_cache: torch.Tensor, value_cache: torch.Tensor) -> None:
    """[slots, kv_heads, head], twice the same."""
    _check_shape("key_cache", key_cache, "[slots, kv_heads, head]", 3)
    if key_cache.dtype not in DTYPES:
        raise ConfigError(
            f"a KV cache of the Triton kernels is float32 or bfloat16, found {key_cache.dtype}; "
            "convert it, or choose torch attention"
        )
    if key_cache.shape[2] not in HEAD_SIZES:
        raise ConfigError(
            f"the Triton kernels know the head sizes 64 and 128, found {key_cache.shape[2]}; "
            "choose torch attention for this model"
        )
    check_like("value_cache", value_cache, key_cache, tuple(key_cache.shape))


def check_queries(queries: torch.Tensor, key_cache: torch.Tensor) -> None:
    """[n, heads, head], with a whole number of query heads for each KV head."""
    _check_shape("queries", queries, "[n, heads, head]", 3)
    heads, kv_heads, head = queries.shape[1], key_cache.shape[1], key_cache.shape[2]
    check_like("queries", queries, key_cache, (queries.shape[0], heads, head))
    if heads == 0 or heads % kv_heads:
        raise ConfigError(
            f"query heads must be a multiple of the {kv_heads} KV heads, found {heads}; correct the shape of queries"
        )


def check_like(name: str, tensor: torch.Tensor, model: torch.Tensor, shape: tuple[int, ...]) -> None:
    """Of this shape, contiguous, and of type and place of `model`, which is the key cache."""
    if tuple(tensor.shape) != shape:
        raise ConfigError(f"{name} must be of shape {list(shape)} to fit the others, found {list(tensor.shape)}; correct it")
    if tensor.dtype != model.dtype:
        raise ConfigError(f"{name} must have the type of key_cache, {model.dtype}, found {tensor.dtype}; convert it")
    _check_place(name, tensor, model)


def check_index(name: str, tensor: torch.Tensor, model: torch.Tensor, shape: tuple[int, ...]) -> None:
    """int32, contiguous, of this shape, beside `model`; slots may be int64 too."""
    dtypes = SLOT_DTYPES if name == "slots" else INDEX_DTYPES
    if tensor.dtype not in dtypes:
        words = " or ".join(str(dtype) for dtype in dtypes)
        raise ConfigError(f"{name} must be {words}, found {tensor.dtype}; convert it")
    if tuple(tensor.shape) != shape:
        raise ConfigError(f"{name} must be of shape {list(shape)} to fit the others, found {list(tensor.shape)}; correct it")
    _check_place(name, tensor, model)


def check_words(name: str, tensor: torch.Tensor, model: torch.Tensor, shape: tuple[int, ...]) -> None:
    """int64, contiguous, of this shape, beside `model`."""
    if tensor.dtype is not torch.int64:
        raise ConfigError(f"{name} must be {torch.int64}, found {tensor.dtype}; convert it")
    if tuple(tensor.shape) != shape:
        raise ConfigError(f"{name} must be of shape {list(shape)} to fit the others, found {list(tensor.shape)}; correct it")
    _check_place(name, tensor, model)


def check_tables(tables: torch.Tensor, key_cache: torch.Tensor, block_size: int) -> None:
    """[rows, blocks] of blocks of a multiple of 16 slots."""
    if type(block_size) is not int or block_size < BLOCK_MULTIPLE or block_size % BLOCK_MULTIPLE:
        raise ConfigError(
            f"block_size of the Triton kernels must be a multiple of 16, found {block_size!r}; choose 16, 32 or 64"
        )
    _check_shape("tables", tables, "[rows, blocks]", 2)
    check_index("tables", tables, key_cache, tuple(tables.shape))


def scale_of(scale: float | None, head_size: int) -> float:
    """The given scale, or one over the root of the head size (Vaswani et al. 2017, section 3.2.1)."""
    return float(head_size**-0.5 if scale is None else scale)


def _check_shape(name: str, tensor: torch.Tensor, shape: str, dimensions: int) -> None:
    if tensor.dim() != dimensions or (tensor.dim() == 3 and 0 in tensor.shape[1:]):
        raise ConfigError(f"{name} must be of shape {shape}, found {list(tensor.shape)}; correct it")


def _check_place(name: str, tensor: torch.Tensor, model: torch.Tensor) -> None:
    if tensor.device != model.device:
        raise ConfigError(f"{name} must lie on the device of key_cache, {model.device}, found {tensor.device}; move it")
    for its_name, its_tensor in ((name, tensor), ("key_cache", model)):
        if not its_tensor.is_contiguous():
            raise ConfigError(
                f"{its_name} must be contiguous, found strides {its_tensor.stride()} for shape {list(its_tensor.shape)}; "
                "say .contiguous()"
            )
