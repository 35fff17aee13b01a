"""What the reader of a streamed text must have been told, judged from the tokens alone, and what the engine must have done with
the choice by then (SC-12).

Owns the sentences and the value that they judge. Everything is worked out anew from all bytes so far, in the plainest way there
is: decode, look for stop strings, cut. A crash of the sentence is the caller's business.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from typing import Final, NamedTuple

from engine_under_test.types import Adapter, FinishReason, Logprobs, SamplingParams
from properties.invariants.catalogue import CATALOGUE
from properties.invariants.predicate import violation
from properties.verdict import Violation


@dataclass(frozen=True, slots=True)
class News:
    """What a reader was told at once: text to be put behind what came before. ``num_tokens``: of the choice, so far;
    ``logprobs``: of the tokens since the news before."""

    text: str
    num_tokens: int
    reason: FinishReason | None = None
    logprobs: tuple[Logprobs, ...] = ()


@dataclass(frozen=True, slots=True)
class Answer:
    """What a user was told who asked for the end of a name (`is_abort`) or for a new life of it.

    ``is_live``: some choice of the name had not told its end by then, nor had an abort of it been taken. ``is_taken``: the
    front said yes; for a new life: it did not say that the name is in use.
    """

    is_abort: bool
    is_live: bool
    is_taken: bool


class Given(NamedTuple):
    """What an engine is given for what a user wrote: the tokens of the prompt and of each bad word, and the adapter."""

    prompt: tuple[int, ...]
    bad_words: tuple[tuple[int, ...], ...] = ()
    adapter: Adapter | None = None


@dataclass(frozen=True, slots=True)
class EngineSide:
    """The same choice as the engine has it.

    ``given``: what it was given; ``written``: what the user's words stand for. ``ends``: of each end that it told, after how
    many tokens and why. ``told_after``: how many tokens there were after each of its outputs; ``logprobs``: in all of them.
    When the reader was told of the end: ``is_live``, whether the engine still had the choice, and ``orphans``, blocks that had
    a count though nobody's table named them. ``left``: what it or the text front had behind a drain.
    """

    given: Given
    written: Given
    ends: tuple[tuple[int, FinishReason], ...]
    told_after: tuple[int, ...] = ()
    logprobs: tuple[Logprobs, ...] = ()
    is_live: bool = False
    orphans: tuple[int, ...] = ()
    left: tuple[str, ...] = ()

    def told_with(self, number: int) -> int:
        """How many tokens there were after the output that brought the token of this number: more than one may come at once."""
        return min((count for count in self.told_after if count >= number), default=number)


@dataclass(frozen=True, slots=True)
class ToldText:
    """One choice: the tokens that the engine gave it, and what its reader was told.

    ``pieces`` are the bytes that each token stands for. ``stop_token_ids`` end a text and are no part of it. ``stops`` are its
    stop strings. ``is_aborted``: its user asked for its end at some time; ``has_failed``: a step of it failed for good.
    ``engine``: None where nobody can look behind it. ``life``: the how-manieth of its name. ``answers``: to what was asked of
    the name from the begin of this life on.
    """

    request_id: str
    choice: int
    token_ids: tuple[int, ...]
    pieces: tuple[bytes, ...]
    sampling: SamplingParams
    stop_token_ids: frozenset[int]
    stops: tuple[str, ...]
    news: tuple[News, ...]
    is_aborted: bool = False
    engine: EngineSide | None = None
    life: int = 1
    answers: tuple[Answer, ...] = ()
    has_failed: bool = False

    @property
    def subject(self) -> str:
        life = f", life {self.life}" if self.life > 1 else ""
        return f"request {self.request_id}{life}, choice {self.choice}"


@dataclass(frozen=True, slots=True)
class TextSentence:
    """A named positive sentence over one streamed choice."""

    identifier: str
    check: Callable[[ToldText], Violation | None]

    @property
    def sentence(self) -> str:
        return self.check.__name__.replace("_", " ")


def streamed_texts_are_those_of_their_tokens(told: ToldText) -> Violation | None:
    """SC-12: at each token the reader has what no later token can change, all of it; the text ends in front of the stop string
    that is complete first, or with the tokens, for the right reason; and nothing follows."""
    shown = ""
    for place, news in enumerate(told.news):
        shown += news.text
        is_last = place == len(told.news) - 1
        if news.reason is not None and not is_last:
            return _broken(told, f"news behind its end by {news.reason}, at token {news.num_tokens}", "nothing")
        if not 0 <= news.num_tokens <= len(told.token_ids):
            return _broken(told, f"{news.num_tokens} tokens told", f"at most {len(told.token_ids)}, as many as there are")
        if news.reason is None:
            due = shown_after(told, news.num_tokens)
            if shown != due:
                return _broken(told, f"{shown!r} shown after {news.num_tokens} tokens", repr(due))
    if not told.news or told.news[-1].reason is None:
        return _broken(told, "no end", "one ending")
    return _ending(told, shown, told.news[-1])


def names_are_in_use_until_their_end(told: ToldText) -> Violation | None:
    """SC-12: until all choices of a name have told their ends or its abort was taken, an abort of it is taken and a new life
    refused; from then on, at once, the name is free, and there is nothing to abort."""
    for answer in told.answers:
        if answer.is_taken != (answer.is_live if answer.is_abort else not answer.is_live):
            asked = "an abort" if answer.is_abort else "a new life"
            found, expected = ("taken", "refused") if answer.is_taken else ("refused", "taken")
            state = "live" if answer.is_live else "ended"
            return _broken(told, f"{asked} of the {state} name {found}", expected)
    return None


def engines_are_given_what_the_words_stand_for(told: ToldText) -> Violation | None:
    """SC-12: the engine is given the tokens that the text of the prompt stands for, those of each bad word, at the begin of a
    text and behind a space, and the adapter that was named; what a user writes in a conversation is text, also where it spells
    a special token."""
    side = told.engine
    if side is None or side.given == side.written:
        return None
    given, written = side.given, side.written
    if given.prompt != written.prompt:
        return _broken(told, f"a prompt of tokens {_listed(given.prompt)}", _listed(written.prompt))
    if given.adapter != written.adapter:
        return _broken(told, f"the adapter {given.adapter}", f"{written.adapter}")
    return _broken(told, f"bad words of the tokens {list(given.bad_words)}", f"{list(written.bad_words)}")


def readers_are_told_of_each_token_once(told: ToldText) -> Violation | None:
    """SC-12: who asked for log-probabilities has, with each news, one for each token so far, that of the token, as the engine
    told it, and none of a token behind the end; who did not ask has none."""
    side, asks = told.engine, told.sampling.logprobs is not None
    if side is not None and tuple(each.tokens[0] for each in side.logprobs) != (told.token_ids if asks else ()):
        return _broken(told, f"log-probabilities of tokens {_first_of(side.logprobs)} from the engine", _due(told, asks, None))
    had: tuple[Logprobs, ...] = ()
    for news in told.news:
        had += news.logprobs
        due = told.token_ids[: news.num_tokens] if asks else ()
        is_right = tuple(each.tokens[0] for each in had) == due and (side is None or had == side.logprobs[: len(had)])
        if not is_right:
            found = f"log-probabilities of tokens {_first_of(had)} with the news of token {news.num_tokens}"
            return _broken(told, found, _due(told, asks, news.num_tokens))
    return None


def _first_of(logprobs: Sequence[Logprobs]) -> str:
    return _listed([each.tokens[0] for each in logprobs])


def _due(told: ToldText, asks: bool, number: int | None) -> str:
    return f"{_listed(told.token_ids[:number])}, as the engine tells them" if asks else "none, since nobody asked"


def engines_end_a_choice_where_its_reader_is_told(told: ToldText) -> Violation | None:
    """SC-12: the engine emits no token behind the end of which a reader is told, ends the choice there, once, for a reason that
    agrees, and by then no longer has it or a block of it; behind a drain it has nothing at all."""
    side = told.engine
    if side is None:
        return None
    if side.left:
        return _broken(told, f"{', '.join(side.left)} behind a drain", "nothing left in the engine")
    if not told.news or told.news[-1].reason is None:
        return None  # what the reader is owed is judged by another sentence
    last = told.news[-1]
    due = side.told_with(last.num_tokens)
    reasons = {last.reason, *_coincident(told, last, due)}
    ends = [number for number, reason in side.ends if reason in reasons]
    if len(told.token_ids) != due or len(side.ends) != 1 or ends != [due]:
        told_of = ", ".join(f"{reason} after {number}" for number, reason in side.ends) or "none"
        found = f"{len(told.token_ids)} tokens and the end {told_of} in the engine"
        return _broken(told, found, f"{due} tokens and the end {last.reason} after {due}, as its reader")
    if side.is_live or side.orphans:
        found = "live in the engine" if side.is_live else f"blocks {_listed(side.orphans)} held for nobody"
        return _broken(told, f"{found} when its reader was told of the end", "ended, its blocks given back")
    return None


def _coincident(told: ToldText, last: News, number: int) -> Sequence[FinishReason]:
    """Other reasons that the engine may have for the end: a stop string may be complete just where it ends by itself, or in
    front of that among the tokens that came at once, ``number`` with them."""
    if last.reason is not FinishReason.STOP:
        return ()
    is_full = number >= told.sampling.max_tokens
    return (FinishReason.LENGTH,) * is_full + (FinishReason.ABORT,) * told.is_aborted + (FinishReason.ERROR,) * told.has_failed


def _listed(numbers: Sequence[int]) -> str:
    return " ".join(map(str, numbers)) or "none"


def _ending(told: ToldText, shown: str, last: News) -> Violation | None:
    number, reason = end_of(told)
    may_cut_short = (FinishReason.ABORT,) * told.is_aborted + (FinishReason.ERROR,) * told.has_failed
    if last.reason in may_cut_short and (reason is None or last.num_tokens < number):
        number, reason = last.num_tokens, last.reason
    text = whole_text(told, number, is_stopped_by_token=reason is FinishReason.STOP and _is_stop_token(told, number))
    cut = cut_at_stop(text, told.stops)
    if cut != text:
        reason = FinishReason.STOP
    if (last.num_tokens, last.reason) != (number, reason):
        due = f"{reason} after {number}" if reason is not None else "none yet"
        return _broken(told, f"the end {last.reason} after {last.num_tokens} tokens", due)
    return None if shown == cut else _broken(told, f"{shown!r} shown in all", repr(cut))


def end_of(told: ToldText) -> tuple[int, FinishReason | None]:
    """The number of tokens with which the choice has to end, and why; (all of them, None) if they give no reason."""
    for number in range(1, len(told.token_ids) + 1):
        if _is_stop_token(told, number):
            return number, FinishReason.STOP
        certain = certain_text(b"".join(told.pieces[:number]))
        if cut_at_stop(certain, told.stops) != certain:
            return number, FinishReason.STOP
        if number >= told.sampling.max_tokens:
            return number, FinishReason.LENGTH
    return len(told.token_ids), None


def _is_stop_token(told: ToldText, number: int) -> bool:
    return 0 < number > told.sampling.min_tokens and told.token_ids[number - 1] in told.stop_token_ids


def whole_text(told: ToldText, number: int, *, is_stopped_by_token: bool) -> str:
    """The text of the first `number` tokens when none follows; what is no UTF-8 is U+FFFD."""
    return b"".join(told.pieces[: number - is_stopped_by_token]).decode("utf-8", "replace")


def shown_after(told: ToldText, number: int) -> str:
    """What a reader has of a choice that goes on: all text that is certain, but for an end that a stop string begins with."""
    certain = certain_text(b"".join(told.pieces[:number]))
    held = [place for place in range(len(certain)) if any(stop.startswith(certain[place:]) for stop in told.stops)]
    return certain[: min(held)] if held else certain


def cut_at_stop(text: str, stops: Sequence[str]) -> str:
    """The text in front of the stop string that is complete at the earliest character; of several, the longest."""
    for end in range(1, len(text) + 1):
        complete = [len(stop) for stop in stops if text[:end].endswith(stop)]
        if complete:
            return text[: end - max(complete)]
    return text


def certain_text(data: bytes) -> str:
    """The text of bytes that others may follow, without an end that may become a character."""
    held = next((size for size in (3, 2, 1) if size <= len(data) and _begins_a_character(data[-size:])), 0)
    return data[: len(data) - held].decode("utf-8", "replace")


@lru_cache(maxsize=4096)  # asked of the same few bytes over and over
def _begins_a_character(data: bytes) -> bool:
    """Whether bytes can be added that make one character of `data`, which is none yet. Tries: the first byte added is the
    lowest or the highest that can follow (E0, ED, F0 and F4 allow only one of the two), the others are the lowest."""
    if _is_character(data):
        return False
    return any(
        _is_character(data + first + b"\x80" * more) for first, more in product((b"\x80", b"\xbf"), range(3)) if len(data) < 4
    )


def _is_character(data: bytes) -> bool:
    try:
        return len(data.decode("utf-8")) == 1
    except UnicodeDecodeError:
        return False


def _broken(told: ToldText, found: str, expected: str) -> Violation:
    return violation("SC-12", told.subject, found, expected, *_facts(told))


def _facts(told: ToldText) -> tuple[str, ...]:
    text = b"".join(told.pieces).decode("utf-8", "replace")
    return (
        f"{'tokens':<13} {' '.join(repr(piece)[1:] for piece in told.pieces)}",
        f"{'text':<13} {text!r}",
        f"{'stop strings':<13} {', '.join(map(repr, told.stops)) or 'none'}",
        f"{'told':<13} {' '.join(f'{news.num_tokens}:{news.text!r}' for news in told.news)}",
    )


TEXT_SENTENCES: Final = tuple(
    TextSentence("SC-12", check)
    for check in (
        streamed_texts_are_those_of_their_tokens,
        names_are_in_use_until_their_end,
        engines_are_given_what_the_words_stand_for,
        readers_are_told_of_each_token_once,
        engines_end_a_choice_where_its_reader_is_told,
    )
)
assert all(each.identifier in CATALOGUE for each in TEXT_SENTENCES)
