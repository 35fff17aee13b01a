"""A recorded request trace, and the requests that it becomes at the scale of a small pool.

Owns the file format (JSON lines as the Mooncake project released them, see NOTICE.md) and the scaling rule; never talks to a
target. A file is loaded whole or not at all.

The scaling rule, with ``block_size`` slots standing for the 512 tokens of a block of the trace:

* prompt: each whole block becomes ``block_size`` tokens; the last one, with 1 <= r < 512 tokens, ``r * block_size // 512``, but
  at least 1. So a block is full after scaling exactly if it was full before, and equal blocks stay equal.
* output: ``output_length // output_divisor`` tokens, but at least 1.
* content: the tokens of a block are a pure function of its identifier. The first of them spell the identifier, so that
  blocks with different identifiers differ from their first tokens on.
* time: only the order of arrival is kept (see `models.trace.workload` for the pace).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from engine_under_test.errors import BadInput
from engine_under_test.types import Request, SamplingParams

TRACE_BLOCK = 512  # tokens that one identifier of the trace stands for
MOONCAKE_SLICE = Path(__file__).with_name("mooncake_conversation_slice.jsonl")
_MAX_HASH_ID = 2**24  # identifiers below this are spelled out
_REMEDY = "mend or remove the line, or load another file"


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """One line of a trace. ``timestamp_ms`` counts from the start of the recording; lengths are in tokens, unscaled."""

    timestamp_ms: int
    input_len: int
    output_len: int
    hash_ids: tuple[int, ...]


def load_trace(path: Path) -> tuple[TraceRequest, ...]:
    """All requests of the file, in order. Raises BadInput, naming the line, at the first one that does not fit."""
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else f"{error.reason} at byte {error.start}"
        raise BadInput(f"a trace is a readable file of UTF-8 text, found {path}: {why}; name another file") from error
    if not lines:
        raise BadInput(f"a trace has at least one request, found {path} empty; name another file")
    found: list[TraceRequest] = []
    parents: dict[int, int | None] = {}
    for number, line in enumerate(lines, 1):
        try:
            request = _parsed(line)
            _follows(request, found[-1] if found else None, parents)
        except _Mismatch as mismatch:
            raise BadInput(f"{path}, line {number}: {mismatch}; {_REMEDY}") from mismatch
        found.append(request)
    return tuple(found)


class _Mismatch(Exception):
    """What a line should be and what was found."""

    def __init__(self, expected: str, found: object) -> None:
        text = str(found)
        super().__init__(f"expected {expected}, found {text if len(text) <= 80 else text[:77] + '...'}")


def _parsed(line: str) -> TraceRequest:
    try:
        data = json.loads(line)
    except ValueError as error:
        raise _Mismatch("a JSON object", f"{line!r} ({error})") from error
    if not isinstance(data, dict):
        raise _Mismatch("a JSON object", repr(line))
    fields = {"timestamp", "input_length", "output_length", "hash_ids"}
    if set(data) != fields:
        raise _Mismatch(f"the fields {', '.join(sorted(fields))}", ", ".join(sorted(data)) or "none")
    for name, least in (("timestamp", 0), ("input_length", 1), ("output_length", 1)):
        if type(data[name]) is not int or data[name] < least:
            raise _Mismatch(f"{name} to be a whole number of at least {least}", repr(data[name]))
    ids = data["hash_ids"]
    if not isinstance(ids, list) or any(type(each) is not int or not 0 <= each < _MAX_HASH_ID for each in ids):
        raise _Mismatch(f"hash_ids to be a list of whole numbers 0 .. {_MAX_HASH_ID - 1}", repr(ids))
    if len(ids) != -(-data["input_length"] // TRACE_BLOCK):
        raise _Mismatch(f"one of hash_ids for each {TRACE_BLOCK} tokens of input_length {data['input_length']}", len(ids))
    return TraceRequest(data["timestamp"], data["input_length"], data["output_length"], tuple(ids))


def _follows(request: TraceRequest, previous: TraceRequest | None, parents: dict[int, int | None]) -> None:
    """Checks a request against the lines before it: time does not go back, and an identifier has one parent."""
    if previous is not None and request.timestamp_ms < previous.timestamp_ms:
        raise _Mismatch(f"a timestamp of at least {previous.timestamp_ms}, as in the line before", request.timestamp_ms)
    parent: int | None = None
    for each in request.hash_ids:
        if (known := parents.setdefault(each, parent)) != parent:
            raise _Mismatch(f"hash id {each} behind {_named(known)}, as in an earlier line", _named(parent))
        parent = each


def _named(hash_id: int | None) -> str:
    return "the start of the prompt" if hash_id is None else f"hash id {hash_id}"


@dataclass(frozen=True, slots=True)
class Scale:
    """How large a trace becomes: ``block_size`` tokens of ``vocab_size`` for each block of the trace."""

    block_size: int
    vocab_size: int
    output_divisor: int

    def prompt_len(self, request: TraceRequest) -> int:
        whole, rest = divmod(request.input_len, TRACE_BLOCK)
        return whole * self.block_size + (max(1, rest * self.block_size // TRACE_BLOCK) if rest else 0)

    def output_len(self, request: TraceRequest) -> int:
        return max(1, request.output_len // self.output_divisor)

    def block_tokens(self, hash_id: int) -> tuple[int, ...]:
        """The content of a full block: the identifier in base ``vocab_size``, then what SHAKE-128 yields from it."""
        spelled, rest = [], hash_id
        for _ in range(self._num_digits):
            rest, digit = divmod(rest, self.vocab_size)
            spelled.append(digit)
        stream = hashlib.shake_128(hash_id.to_bytes(8, "little")).digest(2 * self.block_size)
        filler = (int.from_bytes(stream[2 * i : 2 * i + 2], "little") for i in range(self._num_digits, self.block_size))
        return (*spelled[: self.block_size], *(each % self.vocab_size for each in filler))

    @property
    def _num_digits(self) -> int:
        """Digits that spell any identifier."""
        digits = 1
        while self.vocab_size > 1 and self.vocab_size**digits < _MAX_HASH_ID:
            digits += 1
        return digits

    def requests(self, trace: Iterable[TraceRequest]) -> tuple[Request, ...]:
        """The trace's requests at this scale, named ``t0``, ``t1``, ... in order of arrival."""
        return tuple(self._request(number, each) for number, each in enumerate(trace))

    def _request(self, number: int, request: TraceRequest) -> Request:
        tokens = [token for hash_id in request.hash_ids for token in self.block_tokens(hash_id)]
        prompt = tuple(tokens[: self.prompt_len(request)])
        sampling = SamplingParams(max_tokens=self.output_len(request), seed=number)
        return Request(f"t{number}", prompt, sampling, arrival_s=request.timestamp_ms / 1000)
