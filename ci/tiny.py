"""A tiny random model that speaks in bytes: `--model tiny` runs everything in a second, without a file.

Owns: its shape and its tokenizer. What it says is noise, and the same noise every time.
"""

from __future__ import annotations

import codecs
from collections.abc import Mapping, Sequence

from engine_under_test.model.weights import LlamaConfig, LlamaWeights, tiny_random

END = 256  # ends a text
CONFIG = LlamaConfig(
    vocab_size=257,
    hidden_size=64,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_size=16,
    intermediate_size=128,
    ties_head=False,  # with a tied one, random weights say the same token again and again
)


def tiny_weights() -> LlamaWeights:
    return tiny_random(CONFIG, seed=0)


class ByteStream:
    """Text of bytes that arrive one by one."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token: int) -> str:
        return self._decoder.decode(bytes([token]) if token < END else b"")

    def end(self) -> str:
        return self._decoder.decode(b"", final=True)


class ByteTokenizer:
    """A token is a byte of UTF-8."""

    stop_token_ids = (END,)
    vocab_size = CONFIG.vocab_size

    def encode(self, text: str) -> tuple[int, ...]:
        return tuple(text.encode("utf-8", "replace"))

    def chat(self, messages: Sequence[Mapping[str, str]]) -> tuple[int, ...]:
        return self.encode("".join(f"{message['role']}: {message['content']}\n" for message in messages) + "assistant: ")

    def bytes_of(self, token: int, *, with_special: bool = True) -> bytes:
        del with_special  # the one that ends a text has no name
        return bytes([token]) if token < END else b""

    def stream(self) -> ByteStream:
        return ByteStream()
