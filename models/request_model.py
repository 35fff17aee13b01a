"""What users asked for, what they must have been told, and when each choice ends: the contract, not an engine's way to it.

Owns accepted requests by life, their choices, emitted tokens, endings and what was delivered. Judges answers at the door and
outputs; never looks at a plan or a block.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable

from engine_under_test.caps import Caps
from engine_under_test.types import Adapter, Admission, FinishReason, Media, Output, RefusalReason, Request, RowId
from models.allocator_model import Key
from properties.moment import ChoiceFacts
from properties.verdict import Violation

_ENDED_KEPT = 4096
_MOST = 2**32 - 1  # choices and positions are words of a noise address
_REAL = (int, float)
_BY_TARGET = frozenset({FinishReason.DEADLINE, FinishReason.ERROR})


class RequestModel:
    """Requests from acceptance to their last output."""

    def __init__(self, caps: Caps) -> None:
        self._caps = caps
        self.adapters: Collection[Adapter] = frozenset(caps.adapters)  # that may be named now
        self.live: dict[Key, ChoiceFacts] = {}
        self.ended: dict[Key, ChoiceFacts] = {}
        self._incarnations: dict[str, int] = {}  # the highest seen for an identifier
        self._live_keys: dict[str, list[Key]] = {}
        self._delivered: dict[Key, int] = {}
        self._undelivered_ends: set[Key] = set()
        self._told_end: set[Key] = set()
        self.fresh_ends: list[Key] = []  # ends that an output was the first to tell of
        self.excused: Collection[tuple[str, int]] = ()  # lives that may end by error: their step failed twice in a row

    def choice(self, row: RowId) -> ChoiceFacts | None:
        key = row[:3]
        return self.live.get(key) or self.ended.get(key)

    def keys_of(self, request_id: str) -> tuple[Key, ...]:
        return tuple(self._live_keys.get(request_id, ()))

    def was_known(self, request_id: str) -> bool:
        return request_id in self._incarnations

    def judge_admission(self, request: Request, answer: Admission, now: float) -> Violation | None:
        """Accepted or refused, and for a reason that is true of the request."""
        must = self._due_refusals(request, now)
        told = "accepted" if answer.refusal is None else f"refused as {answer.refusal}"
        expected: str | None = None
        if answer.refusal is None:
            if must:
                expected = "a refusal as " + " or ".join(sorted(must))
            elif answer.incarnation <= self._incarnations.get(request.request_id, -1):
                told = f"incarnation {answer.incarnation}"
                expected = f"one above {self._incarnations[request.request_id]}, the identifier's last"
        elif answer.refusal not in must and answer.refusal not in self._tolerated(request, now):
            expected = "a refusal as " + " or ".join(sorted(must)) if must else "acceptance: nothing is wrong with the request"
        if expected is None:
            return None
        return Violation("SC-4", "lifecycle", f"request {request.request_id} at the door", told, expected)

    def _due_refusals(self, request: Request, now: float) -> list[RefusalReason]:
        """Reasons one of which must be given, if there are any."""
        caps, sampling = self._caps, request.sampling
        slots = len(request.prompt) + sampling.max_tokens - 1
        is_late = request.deadline_s is not None and request.deadline_s < now
        true_of_it = (
            (not request.prompt, RefusalReason.EMPTY_PROMPT),
            (caps.has_length_check and slots > caps.num_blocks * caps.block_size, RefusalReason.TOO_LONG),
            (bool(self._live_keys.get(request.request_id)), RefusalReason.DUPLICATE_ID),
            (_is_out_of_range(request) or (sampling.n > 1 and not caps.has_choices), RefusalReason.OUT_OF_RANGE),
            (not _are_tokens(request.prompt, caps.vocab_size), RefusalReason.TOKEN_OUT_OF_VOCABULARY),
            (request.adapter is not None and request.adapter not in self.adapters, RefusalReason.UNKNOWN_ADAPTER),
            (is_late and caps.has_deadlines, RefusalReason.DEADLINE_PASSED),
        )
        return [reason for is_true, reason in true_of_it if is_true]

    def _tolerated(self, request: Request, now: float) -> set[RefusalReason]:
        """Where the contract leaves it open: limits that the caps do not say, an instant that is exactly the deadline."""
        caps = self._caps
        slots = len(request.prompt) + request.sampling.max_tokens - 1
        may: set[RefusalReason] = set()
        if slots > caps.max_tokens_per_step:
            may.add(RefusalReason.TOO_LONG)  # without chunking
        if request.sampling.n > caps.max_num_seqs:
            may.add(RefusalReason.OUT_OF_RANGE)  # where choices can only run together
        if not _are_tokens(request.sampling.stop_token_ids, caps.vocab_size):
            may |= {RefusalReason.TOKEN_OUT_OF_VOCABULARY, RefusalReason.OUT_OF_RANGE}
        if request.deadline_s is not None and not caps.has_deadlines:
            may |= {RefusalReason.DEADLINE_PASSED, RefusalReason.OUT_OF_RANGE}
        elif request.deadline_s == now:
            may.add(RefusalReason.DEADLINE_PASSED)
        return may

    def accept(self, request: Request, incarnation: int) -> tuple[Key, ...]:
        keys = []
        self._incarnations[request.request_id] = incarnation
        for choice in range(request.sampling.n):
            key = (request.request_id, choice, incarnation)
            self.live[key] = ChoiceFacts(request, choice, incarnation, [])
            self._delivered[key] = 0
            keys.append(key)
        self._live_keys[request.request_id] = keys
        return tuple(keys)

    def advance(self, key: Key, tokens: Iterable[int]) -> bool:
        """A result carried tokens for a choice; True if it ended with them. Tokens behind the end do not count."""
        facts = self.live[key]
        sampling, emitted = facts.request.sampling, facts.emitted
        for token in tokens:
            emitted.append(token)
            count = len(emitted)
            if token in sampling.stop_token_ids and count > sampling.min_tokens:
                self.end(key, FinishReason.STOP)
                return True
            if count >= sampling.max_tokens:
                self.end(key, FinishReason.LENGTH)
                return True
        return False

    def end(self, key: Key, reason: FinishReason) -> None:
        facts = self.live.pop(key)
        facts.finish_reason = reason
        self.ended[key] = facts
        self._undelivered_ends.add(key)
        keys = self._live_keys[key[0]]
        keys.remove(key)
        if not keys:
            del self._live_keys[key[0]]

    def deliver(self, outputs: tuple[Output, ...], now: float) -> Violation | None:
        """What users were told, against what they must be told. The first thing that is wrong."""
        live, ended, delivered, told_end = self.live, self.ended, self._delivered, self._told_end
        for output in outputs:
            key = (output.request_id, output.choice, output.incarnation)
            facts = live.get(key) or ended.get(key)
            if facts is None or key in told_end:
                found = f"an output {'for a choice that nobody asked for' if facts is None else 'behind the end'}"
                return Violation("SC-5", "one ending", _named(key), found, "one terminal event, and nothing after it")
            index, tokens = delivered[key], output.token_ids
            if output.index != index:
                found = f"tokens from index {output.index}"
                return Violation("SC-5", "one ending", _named(key), found, f"index {index}, the next one")
            end = index + len(tokens)
            carried = tuple(facts.emitted[index:end])
            if tokens != carried:
                found = f"tokens {list(tokens)} at index {index}"
                return Violation("SC-1", "pairing", _named(key), found, f"{list(carried)}, those that its results carried")
            delivered[key] = end
            if output.finish_reason is not None:
                wrong = self._judge_end(key, facts, output, now)
                if wrong is not None:
                    return wrong
        return None

    def _judge_end(self, key: Key, facts: ChoiceFacts, output: Output, now: float) -> Violation | None:
        reason = output.finish_reason
        assert reason is not None
        if facts.finish_reason is None:
            wrong = self.judge_own_end(key, reason, now)
            if wrong is not None:
                return wrong
            self.end(key, reason)
            self.fresh_ends.append(key)
        elif facts.finish_reason is not reason:
            return Violation("SC-12", "stopping", _named(key), f"the end {reason}", f"the end {facts.finish_reason}")
        if self._delivered[key] != len(facts.emitted):
            found = f"the end after {self._delivered[key]} tokens"
            return Violation("SC-5", "one ending", _named(key), found, f"{len(facts.emitted)} tokens before it")
        self._told_end.add(key)
        self._undelivered_ends.discard(key)
        self._forget_oldest()
        return None

    def _forget_oldest(self) -> None:
        """A long run keeps the latest ended choices only: results come late, but not that late."""
        while len(self.ended) > _ENDED_KEPT and (oldest := next(iter(self.ended))) in self._told_end:
            del self.ended[oldest], self._delivered[oldest]
            self._told_end.discard(oldest)

    def judge_own_end(self, key: Key, reason: FinishReason, now: float) -> Violation | None:
        """An end that the target decided by itself: by deadline or error, and only with a cause."""
        facts = self.live[key]
        subject = _named(key)
        if reason not in _BY_TARGET:
            count = len(facts.emitted)
            return Violation("SC-12", "stopping", subject, f"the end {reason} after {count} tokens", "no end yet")
        deadline = facts.request.deadline_s
        if reason is FinishReason.DEADLINE and (deadline is None or now < deadline):
            return Violation("SC-15", "deadlines", subject, f"the end deadline at {now} s", f"no end before {deadline} s")
        if reason is FinishReason.ERROR and (key[0], key[2]) not in self.excused:
            expected = "no error: no step of it was lost, or refused its blocks, twice in a row"
            return Violation("SC-12", "stopping", subject, "the end error", expected)
        return None

    def judge_quiet(self) -> Violation | None:
        """At rest, with everything delivered: each accepted choice was told its one end."""
        for key in sorted(self._undelivered_ends):
            subject = _named(key)
            reason = self.ended[key].finish_reason
            return Violation("SC-5", "one ending", subject, "no terminal output", f"one, with reason {reason}")
        return None

    def remaining_tokens(self) -> int:
        """The most tokens that live choices still have to emit, all together."""
        return sum(facts.request.sampling.max_tokens - len(facts.emitted) for facts in self.live.values())


def _named(key: Key) -> str:
    return f"request {key[0]}, choice {key[1]}, incarnation {key[2]}"


def _are_tokens(tokens: tuple[int, ...], vocab_size: int) -> bool:
    return not tokens or (set(map(type, tokens)) == {int} and min(tokens) >= 0 and max(tokens) < vocab_size)


def _is_out_of_range(request: Request) -> bool:
    """A parameter that is not of its type, or outside what engine_under_test/types.py says of it. True and False are no
    integers, whatever Python says."""
    sampling = request.sampling
    max_tokens, min_tokens, top_k, priority = sampling.max_tokens, sampling.min_tokens, sampling.top_k, request.priority
    if set(map(type, (max_tokens, min_tokens, top_k, sampling.n, sampling.seed, priority))) != {int}:
        return True
    deadline_s = 0.0 if request.deadline_s is None else request.deadline_s
    for value in (sampling.temperature, sampling.top_p, sampling.min_p, request.arrival_s, deadline_s):
        if not isinstance(value, _REAL) or type(value) is bool or not math.isfinite(value):
            return True
    return not (
        0 <= min_tokens <= max_tokens
        and 1 <= max_tokens <= _MOST
        and sampling.temperature >= 0
        and 0 <= top_k <= _MOST
        and 0 < sampling.top_p <= 1
        and 0 <= sampling.min_p <= 1
        and 1 <= sampling.n <= _MOST
        and 0 <= sampling.seed <= 2**64 - 1
        and -(2**31) <= priority <= 2**31 - 1
        and _are_placed(request.media, len(request.prompt))
    )


def _are_placed(media: tuple[Media, ...], length: int) -> bool:
    """Each item inside the prompt, none over another: a placeholder stands for one item."""
    if not media:
        return True
    if not all(_is_int(item.start, 0, length) and _is_int(item.length, 1, length) for item in media):
        return False
    end = 0
    for item in sorted(media, key=lambda item: item.start):
        if item.start < end:
            return False
        end = item.start + item.length
    return end <= length


def _is_int(value: object, low: int, high: int) -> bool:
    return type(value) is int and low <= value <= high
