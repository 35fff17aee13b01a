"""Triton kernels of paged attention: storing KV, attention of decodes, attention of chunks of a prompt.

On tensors of a CUDA device they are compiled; on tensors of the CPU Triton's interpreter runs them, slowly, for tests. Not
here: which slot is whose, or positions before rotation. Start reading at `decode.py`; `door.py` says what is accepted.
"""

from engine_under_test.errors import ConfigError

try:
    from engine_under_test.execution.kernels.decode import decode_attention
    from engine_under_test.execution.kernels.prefill import prefill_attention
    from engine_under_test.execution.kernels.store import store_kv
except ModuleNotFoundError as error:
    if error.name is None or error.name.partition(".")[0] not in ("torch", "triton"):
        raise
    raise ConfigError(
        f"the Triton kernels need the extra `model`, but {error.name} is not installed; say pip install -e '.[model]'"
    ) from error

__all__ = ["decode_attention", "prefill_attention", "store_kv"]
