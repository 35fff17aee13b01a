"""The sentence on streamed texts: a good telling passes, and each that differs from it in one field is told apart."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import pytest

from engine_under_test.types import Adapter, FinishReason, Logprobs, SamplingParams
from properties.streamed_text import (
    TEXT_SENTENCES,
    Answer,
    EngineSide,
    Given,
    News,
    ToldText,
    certain_text,
    cut_at_stop,
    shown_after,
    streamed_texts_are_those_of_their_tokens,
)
from properties.verdict import Violation

PIECES = (b"a", "é".encode()[:1], "é".encode()[1:], b"#", b"!", b"##", b"b")
TOLD = (
    News("a", 1),
    News("é", 3),
    News("#!", 5),
    News("", 6, FinishReason.STOP),
)
GOOD = ToldText("a", 0, (5, 6, 7, 8, 9, 10, 11), PIECES, SamplingParams(), frozenset({0}), ("##",), TOLD)


class Bad(NamedTuple):
    claim: str
    news: tuple[News, ...]


BAD = (
    Bad("half a character is shown", (News("a", 1), News("\ufffd", 2), *TOLD[1:])),
    Bad("text is kept back without need", (News("a", 1), News("", 3), News("é#!", 5), TOLD[3])),
    Bad("the begin of a stop string is shown", (*TOLD[:2], News("#", 4), News("!", 5), TOLD[3])),
    Bad("what was held back is lost", (*TOLD[:2], News("!", 5), TOLD[3])),
    Bad("the stop string is shown", (*TOLD[:3], News("##", 6, FinishReason.STOP))),
    Bad("it ends a token late", (*TOLD[:3], News("", 7, FinishReason.STOP))),
    Bad("it ends for another reason", (*TOLD[:3], News("", 6, FinishReason.LENGTH))),
    Bad("it tells of tokens that there are not", (*TOLD[:3], News("", 8, FinishReason.STOP))),
    Bad("something follows its end", (*TOLD, News("", 6))),
    Bad("it never ends", TOLD[:3]),
    Bad("nothing is told", ()),
)


def test_the_good_one_passes() -> None:
    assert streamed_texts_are_those_of_their_tokens(GOOD) is None


@pytest.mark.parametrize("bad", BAD, ids=lambda bad: bad.claim)
def test_what_is_told_wrongly_is_found(bad: Bad) -> None:
    found = streamed_texts_are_those_of_their_tokens(replace(GOOD, news=bad.news))
    assert found is not None
    assert (found.invariant, found.name, found.subject) == ("SC-12", "stopping", "request a, choice 0")


SHOWN = (*TOLD[:2], News("#!", 5))
OTHERS = {
    "an abort": replace(GOOD, stops=(), is_aborted=True, news=(*SHOWN, News("##b", 7, FinishReason.ABORT))),
    "a stop token": replace(GOOD, stops=(), stop_token_ids=frozenset({10}), news=(*SHOWN, News("", 6, FinishReason.STOP))),
    "the length limit": replace(
        GOOD, stops=(), sampling=SamplingParams(max_tokens=6), news=(*SHOWN, News("##", 6, FinishReason.LENGTH))
    ),
    "a stop string that held text back": replace(
        GOOD, stops=("#b",), news=(*SHOWN, News("#", 6), News("", 7, FinishReason.STOP))
    ),
}


@pytest.mark.parametrize("told", OTHERS.values(), ids=OTHERS.keys())
def test_every_end_has_its_own_text(told: ToldText) -> None:
    assert streamed_texts_are_those_of_their_tokens(told) is None
    last = told.news[-1]
    assert streamed_texts_are_those_of_their_tokens(replace(told, news=(*told.news[:-1], replace(last, text="?")))) is not None


def test_an_abort_that_nobody_asked_for_is_found() -> None:
    told = replace(GOOD, stops=(), news=(*TOLD[:3], News("##b", 7, FinishReason.ABORT)))
    assert streamed_texts_are_those_of_their_tokens(told) is not None


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"a\xf0\x9f\x98", "a"),
        (b"a\xe0", "a"),
        (b"\xed\x9f", ""),
        (b"\xf4\x8f\xbf", ""),
        (b"\xed\xa0", "\ufffd\ufffd"),
        (b"\xf0\x80", "\ufffd\ufffd"),
        (b"\xc0", "\ufffd"),
        (b"\xf0\x9fa", "\ufffda"),
        (b"\x9f", "\ufffd"),
    ],
    ids=repr,
)
def test_only_the_begin_of_a_character_is_uncertain(data: bytes, text: str) -> None:
    assert certain_text(data) == text


def test_the_first_character_that_completes_a_stop_string_counts_and_the_longest_of_those() -> None:
    assert cut_at_stop("xabcd", ("bcd", "abc", "c")) == "x"
    assert cut_at_stop("xabcd", ("bcd", "xyz")) == "xa"


def test_all_ends_that_a_stop_string_begins_with_are_held_back() -> None:
    told = replace(GOOD, pieces=(b"aab", b"a"), token_ids=(5, 6), stops=("abab", "bax"))
    assert shown_after(told, 2) == "a"


BEHIND = EngineSide(Given((7, 8)), Given((7, 8)), ((6, FinishReason.STOP),), (1, 2, 3, 4, 5, 6))
KNOWN = replace(GOOD, token_ids=GOOD.token_ids[:6], pieces=PIECES[:6], engine=BEHIND)
FULL = replace(
    KNOWN, sampling=SamplingParams(max_tokens=6), engine=replace(BEHIND, ends=((6, FinishReason.LENGTH),))
)  # the stop string is complete just at the limit
BAD_BEHIND = {
    "it goes on behind the end": replace(KNOWN, token_ids=GOOD.token_ids, pieces=PIECES),
    "it never ended the choice": replace(KNOWN, engine=replace(BEHIND, ends=())),
    "it ended the choice later": replace(KNOWN, engine=replace(BEHIND, ends=((7, FinishReason.STOP),))),
    "it ended the choice twice": replace(KNOWN, engine=replace(BEHIND, ends=BEHIND.ends * 2)),
    "it ended the choice as by its user": replace(KNOWN, engine=replace(BEHIND, ends=((6, FinishReason.ABORT),))),
    "it ended the choice as at a limit": replace(KNOWN, engine=replace(BEHIND, ends=((6, FinishReason.LENGTH),))),
    "it still has the choice": replace(KNOWN, engine=replace(BEHIND, is_live=True)),
    "it holds a block for nobody": replace(KNOWN, engine=replace(BEHIND, orphans=(3,))),
    "it has something left behind a drain": replace(KNOWN, engine=replace(BEHIND, left=("block 3 held",))),
    "it was given another prompt": replace(KNOWN, engine=replace(BEHIND, given=Given((7, 2)))),
    "it was given no adapter": replace(KNOWN, engine=replace(BEHIND, written=Given((7, 8), adapter=Adapter("a", 1)))),
    "it was not given a bad word": replace(KNOWN, engine=replace(BEHIND, written=Given((7, 8), ((4,),)))),
}


def _told_of(*tokens: int) -> tuple[Logprobs, ...]:
    return tuple(Logprobs((token,), (-float(token),)) for token in tokens)


RUNS = replace(BEHIND, told_after=(3, 7), ends=((7, FinishReason.STOP),), logprobs=_told_of(5, 6, 7, 8, 9, 10, 11))
ASKED = replace(
    GOOD,
    sampling=SamplingParams(logprobs=0),
    engine=RUNS,
    news=(News("aé", 3, None, _told_of(5, 6, 7)), News("#!", 6, FinishReason.STOP, _told_of(8, 9, 10))),
)  # the stop string is complete with the third of four tokens that came at once
BAD_TOLD = {
    "a token in the middle is not told of": (ASKED.news[0], replace(ASKED.news[1], logprobs=_told_of(8, 10))),
    "a token without text is not told of": (replace(ASKED.news[0], logprobs=_told_of(5, 6)), ASKED.news[1]),
    "what stands behind the stop string is told of": (ASKED.news[0], replace(ASKED.news[1], logprobs=_told_of(8, 9, 10, 11))),
    "a token is told of twice": (ASKED.news[0], replace(ASKED.news[1], logprobs=_told_of(7, 8, 9, 10))),
}


def test_a_reader_of_several_tokens_at_once_is_told_of_those_up_to_the_end() -> None:
    assert _judged(ASKED) == []
    late = replace(ASKED, news=(ASKED.news[0], replace(ASKED.news[1], num_tokens=7)))
    assert {found.invariant for found in _judged(late)} == {"SC-12"}


@pytest.mark.parametrize("news", BAD_TOLD.values(), ids=BAD_TOLD.keys())
def test_log_probabilities_are_found_where(news: tuple[News, ...]) -> None:
    assert [found.invariant for found in _judged(replace(ASKED, news=news))] == ["SC-12"]


def test_nobody_is_told_log_probabilities_who_did_not_ask() -> None:
    asks_nothing = replace(ASKED, sampling=SamplingParams(), engine=replace(RUNS, logprobs=()))
    assert len(_judged(asks_nothing)) == 1
    assert len(_judged(replace(ASKED, engine=replace(RUNS, logprobs=RUNS.logprobs[:-1])))) == 1


ANSWERS = (
    Answer(is_abort=False, is_live=True, is_taken=False),
    Answer(is_abort=True, is_live=True, is_taken=True),
    Answer(is_abort=True, is_live=False, is_taken=False),
    Answer(is_abort=False, is_live=False, is_taken=True),
)


@pytest.mark.parametrize("answer", ANSWERS, ids=repr)
def test_a_name_is_in_use_just_until_its_end(answer: Answer) -> None:
    second = replace(GOOD, life=2)
    assert _judged(replace(second, answers=(answer,))) == []
    (found,) = _judged(replace(second, answers=(answer, replace(answer, is_taken=not answer.is_taken))))
    assert (found.invariant, found.subject) == ("SC-12", "request a, life 2, choice 0")
    assert ("an abort" if answer.is_abort else "a new life") in found.found


def _judged(told: ToldText) -> list[Violation]:
    return [found for each in TEXT_SENTENCES if (found := each.check(told)) is not None]


@pytest.mark.parametrize("told", [KNOWN, FULL, GOOD], ids=["a stop string", "and at the limit", "nobody can look behind it"])
def test_an_engine_that_ends_as_its_reader_is_told_passes(told: ToldText) -> None:
    assert _judged(told) == []


@pytest.mark.parametrize("told", BAD_BEHIND.values(), ids=BAD_BEHIND.keys())
def test_an_engine_is_found_where(told: ToldText) -> None:
    assert [(found.invariant, found.subject) for found in _judged(told)] == [("SC-12", "request a, choice 0")]


def test_the_sentences_are_of_the_catalogue() -> None:
    assert {each.identifier for each in TEXT_SENTENCES} == {"SC-12"}
    assert len({each.sentence for each in TEXT_SENTENCES}) == 5
