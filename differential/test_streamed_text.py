"""The suite of streamed texts: valid on the engine, and whatever text front is wrong is found and shrunk."""

from __future__ import annotations

from itertools import islice

import pytest

from differential.streamed_text import SUITE_ID, cases, check_streamed_text, first_broken, judge_case, run_case
from differential.suites import STREAMED_TEXT, SUITES
from differential.text_world import FIRST_BYTE, bytes_of_tokens, text_world, tokenizer_of
from engine_under_test import text
from engine_under_test.errors import BadInput
from engine_under_test.model.tokenizer import TokenStream
from properties.op import Op, OpKind
from properties.suite import Profile, SuiteContext
from properties.verdict import Verdict

CONTEXT = SuiteContext(Profile.QUICK, 11)


def test_the_engine_is_valid_and_every_floor_is_reached() -> None:
    result = check_streamed_text(CONTEXT)
    assert (result.verdict, result.missed, result.failures) == (Verdict.VALID, (), ())
    assert result.invariants["SC-12"] > result.examples


def _keeps_nothing_back(_text: str, _stop: str) -> int:
    return 0


def _loses_what_is_held(_self: text.StopStrings) -> str:
    return ""


def _stateless(self: TokenStream, token: int) -> str:
    return self._tokenizer.bytes_of(token).decode("utf-8", "replace")


@pytest.mark.parametrize(
    ("where", "name", "broken"),
    [
        (text, "_overlap", _keeps_nothing_back),
        (text.StopStrings, "end", _loses_what_is_held),
        (TokenStream, "push", _stateless),
    ],
    ids=["stop prefixes are shown", "what was held back is lost", "half characters are shown"],
)
def test_a_wrong_text_front_is_found_and_shrunk(
    monkeypatch: pytest.MonkeyPatch, where: object, name: str, broken: object
) -> None:
    monkeypatch.setattr(where, name, broken)
    result = check_streamed_text(CONTEXT)
    assert result.verdict is Verdict.INVALID
    (failure,) = result.failures
    assert failure.violation.invariant == "SC-12"
    assert len(failure.ops) == 1
    spoken = [one for each in failure.world["texts"].values() for one in each["said"] if one]
    assert len(spoken) == (0 if failure.world.get("runner") == "fingerprint" else 1)  # which says tokens of its own
    said = [token for one in spoken for token in one]
    assert len(said) <= 3
    assert len(failure.world["pieces"]) == len({token for token in said if token >= FIRST_BYTE + 0x100})
    assert judge_case(failure.world, failure.ops) == failure.violation


def test_a_case_is_the_same_every_time() -> None:
    one, other = (list(islice(cases(5), 20)) for _ in range(2))
    assert one == other
    assert [run_case(case.spec, case.ops) for case in one] == [run_case(case.spec, case.ops) for case in other]


def test_operations_that_do_not_apply_do_nothing() -> None:
    told = run_case({"target": "text"}, (Op(OpKind.ABORT, request_id="a"), Op(OpKind.STEP), Op(OpKind.DRAIN)))
    assert told == ()
    assert first_broken(told) is None


def test_the_vocabulary_stands_for_the_bytes_that_it_says() -> None:
    pieces = ["ab", "\xe2\x82", "\xff\x00"]
    tokenizer = tokenizer_of(pieces)
    assert tuple(tokenizer.bytes_of(token) for token in range(tokenizer.vocab_size)) == bytes_of_tokens(pieces)
    assert tokenizer.decode((FIRST_BYTE + ord("x"), 1)) == "x<mark>"


@pytest.mark.parametrize(
    "spec",
    [
        {"what": 1},
        {"texts": {"a": {}}},
        {"texts": {"a": {"said": [[9999]]}}},
        {"pieces": ["漢"]},
        {"texts": 3},
        {"config": {"num_blocks": 0}},
    ],
    ids=["an unknown field", "nothing said", "a token that is none", "a piece that is no bytes", "no texts", "no pool"],
)
def test_what_is_no_world_is_refused(spec: dict[str, object]) -> None:
    with pytest.raises(BadInput):
        text_world(spec)


def test_the_suite_bears_the_name_that_it_reports() -> None:
    assert STREAMED_TEXT in SUITES
    assert STREAMED_TEXT.id == SUITE_ID
    assert STREAMED_TEXT.profiles == frozenset(Profile)
