"""A trace loads whole or not at all, and scaling keeps what is shared."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from engine_under_test.errors import BadInput
from models.trace.requests import MOONCAKE_SLICE, TRACE_BLOCK, Scale, TraceRequest, load_trace

GOOD = {"timestamp": 3, "input_length": 600, "output_length": 70, "hash_ids": [0, 1]}
SCALE = Scale(block_size=16, vocab_size=256, output_divisor=32)


def _line(**changed: object) -> str:
    return json.dumps({**GOOD, **changed})


def test_the_shipped_slice_has_at_least_300_requests_of_which_all_share_the_first_block() -> None:
    trace = load_trace(MOONCAKE_SLICE)
    assert len(trace) == 317
    assert {each.hash_ids[0] for each in trace} == {0}
    assert (max(each.input_len for each in trace), max(each.output_len for each in trace)) == (121924, 2000)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"timestamp": 3', "expected a JSON object, found"),
        ("[1, 2]", "expected a JSON object, found '[1, 2]'"),
        ("", "expected a JSON object, found ''"),
        ("{}", "expected the fields hash_ids, input_length, output_length, timestamp, found none"),
        (_line(more=1), "hash_ids, input_length, more"),
        (_line(timestamp=-1), "timestamp to be a whole number of at least 0, found -1"),
        (_line(input_length=0), "input_length to be a whole number of at least 1, found 0"),
        (_line(output_length=True), "output_length to be a whole number of at least 1, found True"),
        (_line(output_length=1.5), "found 1.5"),
        (_line(hash_ids=[0, -1]), "hash_ids to be a list of whole numbers 0 .. 16777215, found [0, -1]"),
        (_line(hash_ids="01"), "found '01'"),
        (_line(hash_ids=[0]), "one of hash_ids for each 512 tokens of input_length 600, found 1"),
        (_line(timestamp=2), "a timestamp of at least 3, as in the line before, found 2"),
        (_line(hash_ids=[2, 1]), "hash id 1 behind hash id 0, as in an earlier line, found hash id 2"),
        (_line(hash_ids=[1, 2]), "hash id 1 behind hash id 0, as in an earlier line, found the start of the prompt"),
    ],
    ids=[
        "cut off", "not an object", "empty", "without fields", "with a field too many", "before the start", "without prompt",
        "with a flag for a number", "with half a token", "with a negative id", "with text for ids", "with an id missing",
        "earlier than the one before", "with another parent", "with a parent lost",
    ],
)  # fmt: skip
def test_a_malformed_line_is_named_with_what_was_expected_and_what_to_do(line: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(f"{_line()}\n{line}\n{_line()}\n")
    with pytest.raises(BadInput) as refused:
        load_trace(path)
    message = str(refused.value)
    assert f"{path}, line 2: " in message
    assert said in message
    assert message.endswith("mend or remove the line, or load another file")


@pytest.mark.parametrize("content", [None, b"", b"\xff\xfe"], ids=["is missing", "is empty", "is not text"])
def test_no_trace_is_loaded_when_the_file(content: bytes | None, tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(BadInput, match="name another file"):
        load_trace(path)


@pytest.mark.parametrize(
    ("input_len", "prompt_len"),
    [(1, 1), (31, 1), (32, 1), (64, 2), (511, 15), (512, 16), (513, 17), (1024, 32)],
)
def test_a_block_is_full_after_scaling_exactly_if_it_was_full_before(input_len: int, prompt_len: int) -> None:
    num_ids = -(-input_len // TRACE_BLOCK)
    request = TraceRequest(0, input_len, 1, tuple(range(num_ids)))
    (scaled,) = SCALE.requests([request])
    assert len(scaled.prompt) == SCALE.prompt_len(request) == prompt_len
    assert prompt_len // 16 == input_len // 512


@pytest.mark.parametrize(("output_len", "max_tokens"), [(1, 1), (31, 1), (64, 2), (2000, 62)])
def test_outputs_shrink_by_the_stated_divisor_and_keep_one_token(output_len: int, max_tokens: int) -> None:
    (scaled,) = SCALE.requests([TraceRequest(0, 1, output_len, (0,))])
    assert scaled.sampling.max_tokens == max_tokens


def test_equal_identifiers_are_equal_tokens_and_other_ones_differ_within_their_first_three() -> None:
    blocks = [SCALE.block_tokens(hash_id) for hash_id in range(3000)]
    assert blocks[7] == Scale(16, 256, 8).block_tokens(7)
    assert len({block[:3] for block in blocks}) == 3000
    assert all(len(block) == 16 and max(block) < 256 for block in blocks)
