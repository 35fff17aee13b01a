"""The text front: prompts in, streamed text out, stop strings between the two (SC-12).

Owns: what of a choice's text may be shown already, and where a stop string ends it. Never: which tokens there are (the
engine), or how tokens and text belong together (a tokenizer that is handed in; `model/tokenizer.py` has one).

A choice ends at the first character with which a stop string is complete; of several that end there, the longest counts. The
text in front of it is the choice's text, however the text came apart into tokens. So the end of a text that a stop string
may begin with is held back until the next characters decide, and nothing that was shown is ever taken back.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from engine_under_test.engine import Engine
from engine_under_test.errors import BadInput
from engine_under_test.types import Adapter, Admission, FinishReason, Logprobs, Output, Request, SamplingParams

Messages = Sequence[Mapping[str, str]]  # {"role": ..., "content": ...}


class TextStream(Protocol):
    """The text of one choice, token by token."""

    def push(self, token: int) -> str:
        """What `token` adds to the text and no later token can change: bytes of an incomplete character are held back."""

    def end(self) -> str:
        """What was held back, when no token follows."""


class TextTokenizer(Protocol):
    """What the text front wants of a tokenizer."""

    @property
    def stop_token_ids(self) -> Sequence[int]:
        """Tokens that end a text and are not part of it."""

    def encode(self, text: str) -> tuple[int, ...]: ...

    def chat(self, messages: Messages) -> tuple[int, ...]:
        """A conversation, up to where the answer begins."""

    def stream(self) -> TextStream: ...


class StopStrings:
    """Watches one text for stop strings. ``is_stopped`` once one is complete; then nothing more is let through."""

    __slots__ = ("_held", "_stops", "is_stopped")

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = stops
        self._held = ""
        self.is_stopped = False

    def push(self, text: str) -> str:
        """What may be shown now that `text` has followed."""
        if self.is_stopped:
            return ""
        known = self._held + text
        ends = [(start + len(stop), start) for stop in self._stops if (start := known.find(stop)) >= 0]
        if ends:
            self.is_stopped, self._held = True, ""
            return known[: min(ends)[1]]
        shown = len(known) - max((_overlap(known, stop) for stop in self._stops), default=0)
        self._held = known[shown:]
        return known[:shown]

    def end(self) -> str:
        """What was held back, when no text follows."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """The length of the longest end of `text` that `stop` begins with, but is not."""
    return next(length for length in range(min(len(stop) - 1, len(text)), -1, -1) if text.endswith(stop[:length]))


@dataclass(frozen=True, slots=True)
class TextDelta:
    """News of one choice: text to be put behind what came before, and its end if it ended. ``num_tokens``: so far."""

    request_id: str
    choice: int
    text: str
    num_tokens: int
    finish_reason: FinishReason | None = None
    message: str = ""  # with FinishReason.ERROR: what failed
    logprobs: tuple[Logprobs, ...] = ()  # of the tokens since the last news, if asked for


def bad_words_of(words: Sequence[str], tokenizer: TextTokenizer) -> tuple[tuple[int, ...], ...]:
    """The token sequences of words, at the beginning of a text and behind a space. Raises BadInput for an empty one.

    The output never holds one of these sequences; a word that comes apart into other tokens is another sequence.
    """
    if not all(words):
        raise BadInput("bad words are of at least one character, found ''; leave it away")
    special = tokenizer.encode("")
    found = [tokenizer.encode(text)[len(special) :] for word in words for text in (word, f" {word.lstrip()}")]
    return tuple(dict.fromkeys(each for each in found if each))


class _Choice:
    """The text of one choice on its way to the reader."""

    __slots__ = ("num_tokens", "stop_ids", "stops", "stream")

    def __init__(self, stream: TextStream, stops: Sequence[str], stop_ids: frozenset[int]) -> None:
        self.stream = stream
        self.stops = StopStrings(stops)
        self.stop_ids = stop_ids
        self.num_tokens = 0

    def push(self, tokens: Sequence[int], reason: FinishReason | None) -> tuple[str, FinishReason | None]:
        """What these tokens let through, and the end that the reader is told."""
        ends_by_token = reason is FinishReason.STOP and bool(tokens) and tokens[-1] in self.stop_ids
        shown = []
        for place, token in enumerate(tokens, 1):
            self.num_tokens += 1
            if ends_by_token and place == len(tokens):
                break  # the stop token is no text
            shown.append(self.stops.push(self.stream.push(token)))
            if self.stops.is_stopped:
                return "".join(shown), FinishReason.STOP
        if reason is None:
            return "".join(shown), None
        shown.append(self.stops.push(self.stream.end()))
        if self.stops.is_stopped:
            return "".join(shown), FinishReason.STOP
        return "".join((*shown, self.stops.end())), reason


class TextEngine:
    """An engine that is spoken to in text. All requests of the engine go through it; its outputs are taken here only."""

    def __init__(self, engine: Engine, tokenizer: TextTokenizer) -> None:
        self._engine = engine
        self._tokenizer = tokenizer
        self._choices: dict[tuple[str, int, int], _Choice] = {}  # by request, incarnation, choice
        self._num_submitted = 0

    def submit(
        self,
        prompt: str | Messages,
        sampling: SamplingParams | None = None,
        stop: Sequence[str] = (),
        *,
        bad_words: Sequence[str] = (),
        request_id: str | None = None,
        adapter: Adapter | None = None,
    ) -> Admission:
        """Accepts a text, or a conversation, to be continued. The tokenizer's stop tokens join those of `sampling`, and what
        bad words come to (`bad_words_of`) its own.

        Raises BadInput for a stop string that is empty or no string, and for an empty bad word.
        """
        for one in (stop,) if isinstance(stop, str) else stop:
            if not isinstance(one, str) or not one or one is stop:
                raise BadInput(f"stop strings are a list of strings of at least one character, found {one!r}; leave it away")
        tokens = self._tokenizer.encode(prompt) if isinstance(prompt, str) else self._tokenizer.chat(prompt)
        sampling = SamplingParams() if sampling is None else sampling
        stop_ids = tuple(dict.fromkeys((*sampling.stop_token_ids, *self._tokenizer.stop_token_ids)))
        if bad_words:
            sampling = replace(sampling, bad_words=(*sampling.bad_words, *bad_words_of(bad_words, self._tokenizer)))
        self._num_submitted += 1
        name = f"text-{self._num_submitted}" if request_id is None else request_id
        sampling = replace(sampling, stop_token_ids=stop_ids)
        answer = self._engine.submit(Request(name, tokens, sampling, adapter=adapter))
        if answer.is_accepted:
            for choice in range(sampling.n):
                watched = _Choice(self._tokenizer.stream(), tuple(stop), frozenset(stop_ids))
                self._choices[name, answer.incarnation, choice] = watched
        return answer

    def abort(self, request_id: str) -> bool:
        """Ends every live choice of the request. False if it is not live."""
        return self._engine.abort(request_id)

    @property
    def has_work(self) -> bool:
        """True while some choice has not told its end: go on calling `step`."""
        return bool(self._choices)

    def step(self) -> tuple[TextDelta, ...]:
        """One iteration of the engine, and what it lets the readers see, in order."""
        if self._engine.has_work:
            self._engine.step()
        deltas = [self._tell(output) for output in self._engine.take_outputs()]
        return tuple(delta for delta in deltas if delta is not None)

    def stream(self) -> Iterator[TextDelta]:
        """Runs until every choice has ended."""
        while self.has_work:
            yield from self.step()

    def _tell(self, output: Output) -> TextDelta | None:
        key = output.request_id, output.incarnation, output.choice
        choice = self._choices.get(key)
        if choice is None:
            return None  # what follows a stop string
        num_before = choice.num_tokens
        text, reason = choice.push(output.token_ids, output.finish_reason)
        logprobs = output.logprobs[: choice.num_tokens - num_before]  # none of what stands behind a stop string
        if reason is None and not text and not logprobs:
            return None
        if reason is not None:
            del self._choices[key]
            if output.finish_reason is None:
                self._engine.stop_choice(output.request_id, output.choice, output.incarnation)
        return TextDelta(output.request_id, output.choice, text, choice.num_tokens, reason, output.message, logprobs)
