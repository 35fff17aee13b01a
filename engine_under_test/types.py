"""The frozen values that cross a boundary; nothing here has behaviour beyond reading its own columns.

Lengths are in tokens (equal to slots), blocks are physical page numbers, times are seconds on the clock seam. A *slot* is
``block * block_size + offset``. Block 0 is the padding block; usable blocks are ``1..num_blocks``.

`Plan`, `Reservation` and `StepResult` are columnar: entry ``i`` of every per-row column belongs to row ``i``, and *flat*
columns hold the rows one after the other. Row objects are built only when somebody asks for them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import Any, NamedTuple, TypeVar, cast, dataclass_transform

PADDING_BLOCK = 0

_Value = TypeVar("_Value", bound=type)


@dataclass_transform(frozen_default=True)
def _value(cls: _Value) -> _Value:
    """A frozen dataclass to the type checker. At run time nothing stops an assignment: what every step makes several of would
    take three times as long to make if each of its columns were set through `object.__setattr__`."""
    return cast("_Value", dataclass(slots=True, unsafe_hash=True)(cls))


class FinishReason(StrEnum):
    """Why a choice ended. Terminal: nothing follows it (SC-5)."""

    STOP = "stop"  # a stop token was emitted (it is part of the output), or whoever reads the choice has stopped it
    LENGTH = "length"  # max_tokens reached
    ABORT = "abort"  # the user aborted the request
    DEADLINE = "deadline"  # the request's deadline passed
    ERROR = "error"  # the step failed in the runner, or its blocks were refused, twice


class RefusalReason(StrEnum):
    """Why a request was refused at the door. Nothing of a refused request is kept."""

    EMPTY_PROMPT = "empty_prompt"
    TOO_LONG = "too_long"  # prompt + max_tokens - 1 slots exceed the pool (or, without chunking, the token budget)
    DUPLICATE_ID = "duplicate_id"  # a live request has this identifier
    OUT_OF_RANGE = "out_of_range"  # a parameter outside its range, NaN included
    TOKEN_OUT_OF_VOCABULARY = "token_out_of_vocabulary"
    UNKNOWN_ADAPTER = "unknown_adapter"  # this adapter is not loaded, or not in this version
    DEADLINE_PASSED = "deadline_passed"
    GRAMMAR = "grammar"  # can not be compiled within its budget, or nobody handed in what compiles it


class Status(StrEnum):
    """Where a choice stands. waiting -> running -> finished; preemption leads back from running to waiting (SC-4)."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(frozen=True, slots=True)
class Adapter:
    """A LoRA adapter as a request names it. Two versions under one name are two adapters (KV-8)."""

    name: str
    version: int


@dataclass(frozen=True, slots=True)
class Media:
    """An image or the like, standing at placeholder tokens ``start .. start + length - 1`` of the prompt.

    ``digest`` identifies the content; position and digest both enter the prefix key (KV-8).
    """

    digest: str
    start: int
    length: int


class GrammarKind(StrEnum):
    """How a grammar is written."""

    JSON_SCHEMA = "json_schema"
    REGEX = "regex"
    CHOICE = "choice"


@dataclass(frozen=True, slots=True)
class GrammarSpec:
    """Which texts an output may be. ``sources``: one JSON schema, one regular expression that the whole text matches, or the
    choices. The text is the bytes of the output's tokens, without the stop token at its end."""

    kind: GrammarKind
    sources: tuple[str, ...]


class LogprobsMode(StrEnum):
    """Of which distribution a request is told log-probabilities."""

    RAW = "raw"  # the model's own, before any step
    PROCESSED = "processed"  # the one that is drawn from; greedy: the one whose highest is taken, without a temperature


class Logprobs(NamedTuple):
    """Natural logarithms of probabilities at one place: first the token that stands there, then the most probable ones in
    falling order, among equals by rising number (so it stands there twice if it is one of them). -inf: dropped by a step."""

    tokens: tuple[int, ...]
    values: tuple[float, ...]


class History(NamedTuple):
    """All tokens in front of the one to be chosen."""

    prompt: tuple[int, ...]
    output: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How tokens are chosen. ``temperature`` 0 is greedy.

    ``max_tokens`` >= 1; 0 <= ``min_tokens`` <= ``max_tokens``: before ``min_tokens`` tokens are out, stop tokens are
    not sampled. ``n`` >= 1 choices, each at its own noise addresses. ``seed`` in 0 .. 2**64 - 1.

    After the temperature, in this order: ``min_p`` (0 .. 1; 0 is off) keeps tokens at least that many times as probable as
    the most probable one; ``top_k`` (>= 0; 0 is off) keeps the k most probable; ``top_p`` (above 0, up to 1; 1 is off)
    keeps the most probable tokens until their sum reaches p.

    Before the temperature, in this order (`History` says what prompt and output are): ``allowed_token_ids`` keeps these tokens
    only, () all; ``grammar`` keeps those behind which the output can still become one of its texts, and stop tokens, of which
    there must be some, where it is one; ``bad_words``: token sequences that the output never holds; ``processors``: names of
    the `LogitsProcessor`s of the engine that are applied, in this order; ``logit_bias``: (token, -100 .. 100) pairs that are
    added; ``repetition_penalty`` (0.001 .. 1000; 1 is off) divides positive logits and multiplies negative ones of tokens of
    prompt and output; ``frequency_penalty`` and ``presence_penalty`` (-2 .. 2; 0 is off) are taken off tokens of the output,
    the first for each time that they stand there, the second once.

    ``logprobs``: with each token come log-probabilities, its own and the so many highest (0: its own only; the size of the
    vocabulary or more: all); None: none. ``prompt_logprobs``: the same, raw, for each token of the prompt but the first.
    """

    max_tokens: int = 16
    min_tokens: int = 0
    temperature: float = 0.0
    seed: int = 0
    n: int = 1
    stop_token_ids: tuple[int, ...] = ()
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    allowed_token_ids: tuple[int, ...] = ()
    grammar: GrammarSpec | None = None
    bad_words: tuple[tuple[int, ...], ...] = ()
    processors: tuple[str, ...] = ()
    logit_bias: tuple[tuple[int, float], ...] = ()
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logprobs: int | None = None
    logprobs_mode: LogprobsMode = LogprobsMode.RAW
    prompt_logprobs: int | None = None

    @property
    def is_adjusted(self) -> bool:
        """Whether any step before `min_tokens` is on."""
        return (
            self.repetition_penalty != 1
            or self.frequency_penalty != 0
            or self.presence_penalty != 0
            or self.grammar is not None
            or bool(self.allowed_token_ids or self.bad_words or self.processors or self.logit_bias)
        )

    @property
    def needs_history(self) -> bool:
        """Whether its rows go the long way: a step before `min_tokens` is on, or log-probabilities are asked for."""
        return self.logprobs is not None or self.prompt_logprobs is not None or self.is_adjusted


@dataclass(frozen=True, slots=True)
class Request:
    """What a user asks for.

    ``priority``: smaller is more urgent (read by the priority policy only). ``tenant`` and ``cache_salt`` separate
    prefix-cache namespaces (KV-8). ``deadline_s`` is absolute on the engine's clock. ``arrival_s`` is when the user
    sent it, on the same clock.
    """

    request_id: str
    prompt: tuple[int, ...]
    sampling: SamplingParams = SamplingParams()
    priority: int = 0
    tenant: str = ""
    cache_salt: str = ""
    adapter: Adapter | None = None
    media: tuple[Media, ...] = ()
    arrival_s: float = 0.0
    deadline_s: float | None = None


@dataclass(frozen=True, slots=True)
class Admission:
    """The answer at the door: accepted with the incarnation given to the identifier, or refused with a reason."""

    request_id: str
    incarnation: int
    refusal: RefusalReason | None = None
    message: str = ""  # on refusal: the rule, what was found, what was expected, what to do

    @property
    def is_accepted(self) -> bool:
        return self.refusal is None


class RowId(NamedTuple):
    """The identity of a row: which choice of which life of which request, since which preemption (AS-4)."""

    request_id: str
    choice: int
    incarnation: int
    epoch: int


# `tuple.__new__` in place of the class: a call that stays in C, for what is made for every row of every step.
row_id_of = cast("Callable[[tuple[str, int, int, int]], RowId]", partial(tuple.__new__, RowId))


@_value
class Plan:
    """What one step shall compute: a decision, with no physical state in it.

    Row ``i`` computes positions ``starts[i] .. starts[i] + num_tokens[i] - 1`` of its choice. A row that (re)starts its
    choice lists the blocks it found in the prefix cache in ``hit_blocks`` and starts behind them; other rows have ``()``.
    ``token_ids`` is flat and holds the input tokens that the host knows. ``num_pending[i]`` is 1 if the last input token
    of the row is the one that the choice's previous plan in flight samples (fed on the device), else 0: the row's part
    of ``token_ids`` is ``num_tokens[i] - num_pending[i]`` long. ``samples[i]``: the row's last position yields a token.
    ``outputs[i]``: the output so far, as the host knows it, of a choice whose sampling needs it, else None; () if no row's
    does. What of it is still in flight, the device adds.
    ``num_drafts[i]``: so many of the row's last input tokens are *drafts*, guesses at what the tokens before them lead to; they
    count in ``num_tokens``. The row then yields the drafts that stand, and one token more. () if no row has any.
    ``draft_laws[i]``: the probabilities [drafts, vocabulary] that the row's drafts were drawn from; None if each is a function
    of what stands before it. () if no row has any. Arrays of whoever proposed; not compared.
    """

    plan_id: int  # never used twice (SK-3), rising in launch order
    generation: int
    requests: tuple[Request, ...]
    choices: tuple[int, ...]
    incarnations: tuple[int, ...]
    epochs: tuple[int, ...]
    starts: tuple[int, ...]
    num_tokens: tuple[int, ...]
    token_ids: tuple[int, ...]
    num_pending: tuple[int, ...]
    samples: tuple[bool, ...]
    hit_blocks: tuple[tuple[int, ...], ...]
    outputs: tuple[tuple[int, ...] | None, ...] = ()
    num_drafts: tuple[int, ...] = ()
    draft_laws: tuple[Any, ...] = field(default=(), repr=False, compare=False)
    _row_ids: tuple[RowId, ...] | None = field(default=None, init=False, repr=False, compare=False)

    @property
    def num_rows(self) -> int:
        return len(self.requests)

    def row_id(self, row: int) -> RowId:
        return self.row_ids()[row]

    def drafts(self) -> tuple[tuple[int, ...], ...]:
        """The drafts of each row."""
        if not self.num_drafts:
            return ((),) * len(self.requests)
        end, found = 0, []
        for count, pending, num in zip(self.num_tokens, self.num_pending, self.num_drafts, strict=True):
            end += count - pending
            found.append(self.token_ids[end - num : end])
        return tuple(found)

    def row_ids(self) -> tuple[RowId, ...]:
        """The identities of the rows, made once."""
        found = self._row_ids
        if found is None:
            names = [request.request_id for request in self.requests]
            found = tuple(map(row_id_of, zip(names, self.choices, self.incarnations, self.epochs, strict=True)))
            object.__setattr__(self, "_row_ids", found)
        return found


class BlockCopy(NamedTuple):
    """Copy the first ``num_slots`` slots of block ``source`` to block ``target`` before this plan's writes (KV-11)."""

    source: int
    target: int
    num_slots: int


class AdapterLoad(NamedTuple):
    """Load the weights of `adapter` into slot `slot` (1, 2, ...) before this plan's rows (RS-1)."""

    slot: int
    adapter: Adapter


@_value
class Reservation:
    """The physical side of a plan: what was taken for it, and what the device must do before its rows.

    Order on the device: ``fills`` (poison whole blocks), ``copies``, ``adapter_loads``, then the rows' writes and reads.
    ``tables[i]`` maps positions ``0 .. starts[i] + num_tokens[i] - 1`` of row ``i`` to blocks. ``slots`` is flat: the slot of
    each position that a row computes. ``new_blocks[i]`` were taken from the free queue for row ``i`` (targets of copies
    included). ``evicted``: the cached blocks among them, in the order of eviction. ``adapter_slots[i]``: the slot from which
    row ``i`` reads its adapter, 0 without one; () if no row has one, or where the target has no slots.
    """

    plan_id: int
    tables: tuple[tuple[int, ...], ...]
    slots: tuple[int, ...]
    new_blocks: tuple[tuple[int, ...], ...]
    copies: tuple[BlockCopy, ...] = ()
    fills: tuple[int, ...] = ()
    evicted: tuple[int, ...] = ()
    adapter_slots: tuple[int, ...] = ()
    adapter_loads: tuple[AdapterLoad, ...] = ()


@_value
class PlannedStep:
    """A plan with its reservation, ready to launch, and the choices that were preempted to make room for it."""

    plan: Plan
    reservation: Reservation
    preempted: tuple[RowId, ...] = ()


@_value
class StepResult:
    """What a launched plan produced: 0..k tokens a row, in the plan's row order, with the rows' identities.

    ``logprobs[i]``: of each of the row's tokens if it asks, else (). ``prompt_logprobs[i]``: of the prompt's tokens behind
    each position that the row computed, if it asks. Either is () as a whole if no row has any.
    """

    plan_id: int
    generation: int
    rows: tuple[RowId, ...]
    tokens: tuple[tuple[int, ...], ...]
    logprobs: tuple[tuple[Logprobs, ...], ...] = ()
    prompt_logprobs: tuple[tuple[Logprobs, ...], ...] = ()


@_value
class Output:
    """News for the user of one choice: tokens ``index .. index + len(token_ids) - 1``, and its end if it ended.

    ``logprobs``: of each of these tokens, if asked for. ``prompt_logprobs``: of the prompt's second token and all behind it, if
    asked for, with the first token of choice 0.
    """

    request_id: str
    choice: int
    incarnation: int
    index: int
    token_ids: tuple[int, ...]
    finish_reason: FinishReason | None = None
    message: str = ""  # with FinishReason.ERROR: what failed
    logprobs: tuple[Logprobs, ...] = ()
    prompt_logprobs: tuple[Logprobs, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class PrefixEntry:
    """One piece of content that the prefix index can name: a full block of tokens behind a parent.

    Compared by identity: two blocks with equal content share one entry while it is indexed. ``namespace`` is the
    injective, domain-tagged encoding of model revision, tenant, salt and adapter; ``media`` holds (digest, offset of the
    item's start relative to the block's start, length) for each item that overlaps the block.
    """

    key: bytes
    namespace: bytes
    parent: PrefixEntry | None
    tokens: tuple[int, ...]
    media: tuple[tuple[str, int, int], ...] = ()

    def prefix(self) -> tuple[int, ...]:
        """All tokens from the start of the prompt to the end of this block."""
        pieces = []
        entry: PrefixEntry | None = self
        while entry is not None:
            pieces.append(entry.tokens)
            entry = entry.parent
        return tuple(token for piece in reversed(pieces) for token in piece)


class SequenceSnapshot(NamedTuple):
    """One live choice. A named tuple, since very many are made and a frozen dataclass takes five times as long.

    ``table`` are the blocks it owns; ``reserved`` the blocks that plans in flight took for it, in table order behind
    ``table`` (a block copied on write stays in ``table`` until its plan is committed).
    ``committed_len`` <= ``scheduled_len`` <= ``allocated_len``; ``visible_len`` is prompt plus emitted tokens.
    ``plans`` are the plans in flight that name the choice under its present epoch, oldest first.
    """

    request_id: str
    choice: int
    incarnation: int
    epoch: int
    status: Status
    prompt_len: int
    visible_len: int
    committed_len: int
    scheduled_len: int
    allocated_len: int
    table: tuple[int, ...]
    reserved: tuple[int, ...]
    plans: tuple[int, ...] = ()

    @property
    def row_id(self) -> RowId:
        return row_id_of(self[:4])


@_value
class Snapshot:
    """Everything that the harness may see of a target at one instant, at rest between two verbs.

    ``free``: the free queue in order, next to be taken first, duplicates visible; it holds empty and cached blocks.
    ``cached``: block -> what the prefix index would answer with it or a duplicate of it; also names owned and
    quarantined blocks that are indexed. ``ref_counts``: one for each physical block, padding first, or None where the
    target keeps none. ``reservations``: for each plan in flight, oldest first, the blocks it holds and no table owns yet: new
    blocks, hits, and the sources of copies whose choice is gone; repeated if held twice. ``pinned``: blocks held by a transfer,
    repeated if held twice. ``quarantined``: block -> plan whose end it waits for. ``plans``: launched, neither
    committed nor abandoned, oldest first. ``unsettled``: plans whose fence has not passed, committed or abandoned ones
    included. ``adapters``: those that requests may name, and those that live requests still name. ``adapter_slots``: what lies
    in slot 1, 2, ... of the device once the plans in flight have run, None if nothing of use; () where there are no slots.
    """

    block_size: int
    num_blocks: int
    generation: int
    cache_generation: int
    free: tuple[int, ...]
    cached: Mapping[int, PrefixEntry]
    ref_counts: tuple[int, ...] | None
    reservations: Mapping[int, tuple[int, ...]]
    pinned: tuple[int, ...]
    quarantined: Mapping[int, int]
    plans: tuple[int, ...]
    unsettled: tuple[int, ...]
    waiting: tuple[SequenceSnapshot, ...]  # in the order in which they would be admitted
    running: tuple[SequenceSnapshot, ...]
    host_blocks: tuple[int, ...] = ()  # of the swap pool, in use
    adapters: tuple[Adapter, ...] = ()
    adapter_slots: tuple[Adapter | None, ...] = ()
    loading: tuple[RowId, ...] = ()  # waiting, and passed over until their prefix has come from elsewhere

    def sequences(self) -> Iterator[SequenceSnapshot]:
        yield from self.running
        yield from self.waiting
