"""A second target, deliberately unlike the engine: a radix tree over single-token pages.

Owns its queue and its sequences (the tree and the pages are `page_tree`'s); knows nothing of models, World or checkers.
Written from the text of `engine_under_test.adapters.base` alone. What differs from an engine with block tables:

* a page holds one token, and its tree node is the prefix-cache entry: a committed token is in the tree at once;
* a running sequence is a lock on the path to its deepest node. A computed page whose token the tree has already is freed, and
  the sequence goes on with the tree's page;
* pages are evicted on demand and in bulk, before a step takes its pages;
* a step is either prefill or decode, in turn where both have work; prompts are computed whole unless the budget is smaller;
* nothing is preempted: a sequence is admitted only if it can finish with the pages that nobody else was promised.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field

from engine_under_test.caps import Caps, ReferenceModel
from engine_under_test.config import EngineConfig
from engine_under_test.errors import ProtocolError
from engine_under_test.seams import Hasher
from engine_under_test.types import (
    Admission,
    FinishReason,
    Media,
    Output,
    Plan,
    PlannedStep,
    RefusalReason,
    Request,
    Reservation,
    RowId,
    SequenceSnapshot,
    Snapshot,
    Status,
    StepResult,
)
from models.targets.page_tree import Label, Node, PageTree


@dataclass(slots=True, eq=False)
class Sequence:
    """A live request. ``table``: the pages from the root to ``node``; ``taken``: those of its row in flight."""

    request: Request
    incarnation: int
    node: Node
    hit: tuple[int, ...] = ()
    emitted: list[int] = field(default_factory=list)
    table: list[int] = field(default_factory=list)
    taken: tuple[int, ...] = ()

    @property
    def row_id(self) -> RowId:
        return RowId(self.request.request_id, 0, self.incarnation, 0)

    @property
    def num_uncomputed(self) -> int:
        """Prompt tokens without a page in the table; 0 or less when decoding."""
        return len(self.request.prompt) - len(self.table)

    @property
    def num_pages_to_come(self) -> int:
        return self.num_uncomputed + self.request.sampling.max_tokens - 1

    def token(self, position: int) -> int:
        prompt = self.request.prompt
        return prompt[position] if position < len(prompt) else self.emitted[position - len(prompt)]

    def label(self, position: int) -> Label:
        items = [item for item in self.request.media if item.start <= position < item.start + item.length]
        items.sort(key=lambda item: item.start)
        return self.token(position), tuple((item.digest, item.start - position, item.length) for item in items)


class RadixTarget:
    """The target. Of `config`, block size, adapters, order and depth do not apply: pages hold one token, there are no
    adapters, admission is first come, and one plan is in flight at most."""

    def __init__(self, config: EngineConfig, hasher: Hasher | None = None) -> None:
        self._caps = Caps(
            name="radix",
            block_size=1,
            num_blocks=config.num_blocks,
            max_tokens_per_step=config.max_tokens_per_step,
            max_num_seqs=config.max_num_seqs,
            vocab_size=config.vocab_size,
            model_revision=config.model_revision,
            # an admitted sequence waits at most for the chunks of one long prompt, each followed by a decode step
            progress_bound=2 * math.ceil(config.num_blocks / config.max_tokens_per_step) + 2,
            overtake_bound=0,
            reference_model=ReferenceModel.PATH_LOCK,
            evicts_on_demand=True,
        )
        self._tree = PageTree(config.num_blocks, config.model_revision, hasher)
        self._waiting: deque[Sequence] = deque()
        self._running: list[Sequence] = []
        self._incarnations: dict[str, int] = {}
        self._outputs: list[Output] = []
        self._in_flight: tuple[PlannedStep, tuple[Sequence, ...]] | None = None
        self._num_plans = 0
        self._is_decodes_turn = False

    @property
    def caps(self) -> Caps:
        return self._caps

    def add(self, request: Request) -> Admission:
        if (refusal := self._refusal(request)) is not None:
            return Admission(request.request_id, 0, *refusal)
        incarnation = self._incarnations.get(request.request_id, 0) + 1
        self._incarnations[request.request_id] = incarnation
        self._waiting.append(Sequence(request, incarnation, self._tree.root(request)))
        return Admission(request.request_id, incarnation)

    def _refusal(self, request: Request) -> tuple[RefusalReason, str] | None:
        vocab_size, num_pages = self._caps.vocab_size, self._caps.num_blocks
        need = len(request.prompt) + request.sampling.max_tokens - 1
        tokens = request.prompt + request.sampling.stop_token_ids
        rules = (
            (not request.prompt, RefusalReason.EMPTY_PROMPT, "a prompt has at least 1 token, found none; send one"),
            (
                self._find(request.request_id) is not None,
                RefusalReason.DUPLICATE_ID,
                f"identifiers of live requests differ, found {request.request_id!r} again; choose another",
            ),
            ((message := _out_of_range(request)) != "", RefusalReason.OUT_OF_RANGE, message),
            (
                any(type(token) is not int or not 0 <= token < vocab_size for token in tokens),
                RefusalReason.TOKEN_OUT_OF_VOCABULARY,
                f"tokens are 0 .. {vocab_size - 1}, found {min(tokens, default=0)} .. {max(tokens, default=0)}; send those",
            ),
            (
                request.adapter is not None,
                RefusalReason.UNKNOWN_ADAPTER,
                f"there are no adapters here, found {request.adapter}; send none",
            ),
            (
                need > num_pages,
                RefusalReason.TOO_LONG,
                f"prompt + max_tokens - 1 is at most {num_pages}, found {need}; shorten one",
            ),
        )
        return next(((reason, message) for is_broken, reason, message in rules if is_broken), None)

    def abort(self, request_id: str) -> bool:
        sequence = self._find(request_id)
        if sequence is not None:
            self._end(sequence, FinishReason.ABORT)
        return sequence is not None

    def _find(self, request_id: str) -> Sequence | None:
        live = (*self._running, *self._waiting)
        return next((sequence for sequence in live if sequence.request.request_id == request_id), None)

    def plan(self) -> PlannedStep | None:
        if self._in_flight is not None:
            return None
        decodes = [(sequence, 1) for sequence in self._running if sequence.num_uncomputed <= 0]
        rows = decodes if decodes and self._is_decodes_turn else self._prefills() or decodes
        if not rows:
            return None
        self._is_decodes_turn = rows is not decodes
        evicted = self._tree.make_room(sum(num_tokens for _, num_tokens in rows))
        for sequence, num_tokens in rows:
            sequence.taken = self._tree.take(num_tokens)
        self._num_plans += 1
        sequences = tuple(sequence for sequence, _ in rows)
        step = PlannedStep(self._plan_of(sequences), self._reservation_of(sequences, evicted))
        self._in_flight = step, sequences
        return step

    def _prefills(self) -> list[tuple[Sequence, int]]:
        """Prompts in order, each whole; one longer than the whole budget is cut and stands first."""
        budget = self._caps.max_tokens_per_step
        rows = [(s, min(s.num_uncomputed, budget)) for s in self._running if s.num_uncomputed > 0]
        budget -= sum(num_tokens for _, num_tokens in rows)
        while self._waiting and len(self._running) < self._caps.max_num_seqs:
            path = self._match(self._waiting[0])
            num_tokens = len(self._waiting[0].request.prompt) - len(path)
            if (rows and num_tokens > budget) or not self._is_affordable(self._waiting[0], path):
                break
            rows.append((self._admit(path), min(num_tokens, budget)))
            budget -= rows[-1][1]
        return rows

    def _match(self, sequence: Sequence) -> list[Node]:
        """The longest path of the tree that the prompt follows, short of its last token."""
        node: Node | None = sequence.node
        path: list[Node] = []
        for position in range(len(sequence.request.prompt) - 1):
            node = node.children.get(sequence.label(position)) if node is not None else None
            if node is None:
                break
            path.append(node)
        return path

    def _is_affordable(self, sequence: Sequence, path: list[Node]) -> bool:
        promised = sum(other.num_pages_to_come for other in self._running)
        num_evictable = self._tree.num_unlocked - sum(1 for node in path if node.locks == 0)
        return sequence.num_pages_to_come - len(path) + promised <= len(self._tree.free) + num_evictable

    def _admit(self, path: list[Node]) -> Sequence:
        sequence = self._waiting.popleft()
        self._running.append(sequence)
        for node in path:
            self._tree.lock(node)
            sequence.node = node
        sequence.table = [node.page for node in path]
        sequence.hit = tuple(sequence.table)
        return sequence

    def _plan_of(self, sequences: tuple[Sequence, ...]) -> Plan:
        ends = [len(sequence.table) + len(sequence.taken) for sequence in sequences]
        ranges = [(s, range(len(s.table), end)) for s, end in zip(sequences, ends, strict=True)]
        return Plan(
            plan_id=self._num_plans,
            generation=0,
            requests=tuple(sequence.request for sequence in sequences),
            choices=(0,) * len(sequences),
            incarnations=tuple(sequence.incarnation for sequence in sequences),
            epochs=(0,) * len(sequences),
            starts=tuple(len(sequence.table) for sequence in sequences),
            num_tokens=tuple(len(sequence.taken) for sequence in sequences),
            token_ids=tuple(sequence.token(position) for sequence, positions in ranges for position in positions),
            num_pending=(0,) * len(sequences),
            samples=tuple(end >= len(s.request.prompt) for s, end in zip(sequences, ends, strict=True)),
            hit_blocks=tuple(s.hit if len(s.hit) == len(s.table) else () for s in sequences),
        )

    def _reservation_of(self, sequences: tuple[Sequence, ...], evicted: tuple[int, ...]) -> Reservation:
        pages = tuple(page for sequence in sequences for page in sequence.taken)
        return Reservation(
            plan_id=self._num_plans,
            tables=tuple((*sequence.table, *sequence.taken) for sequence in sequences),
            slots=pages,  # a page is a block of one slot
            new_blocks=tuple(sequence.taken for sequence in sequences),
            fills=self._tree.take_emptied(),
            evicted=tuple(page for page in evicted if page in set(pages)),
        )

    def commit(self, result: StepResult) -> None:
        if self._in_flight is None or (result.plan_id, result.generation) != (self._in_flight[0].plan.plan_id, 0):
            return
        step, sequences = self._in_flight
        if result.rows != tuple(step.plan.row_ids()) or [len(tokens) for tokens in result.tokens] != list(step.plan.samples):
            raise ProtocolError(
                f"a result has its plan's rows and a token for each that samples, found {result.rows} with {result.tokens} "
                f"for plan {result.plan_id}; hand in what the plan asked for"
            )
        self._in_flight = None
        for sequence, tokens in zip(sequences, result.tokens, strict=True):
            if sequence in self._running:
                self._commit_row(sequence, tokens)
            else:
                self._tree.give_back(sequence.taken)

    def _commit_row(self, sequence: Sequence, tokens: tuple[int, ...]) -> None:
        for page in sequence.taken:
            sequence.node = self._tree.insert(sequence.node, sequence.label(len(sequence.table)), page)
            sequence.table.append(sequence.node.page)
        sequence.taken = ()
        if not tokens:
            return
        sequence.emitted += tokens
        if tokens[-1] in sequence.request.sampling.stop_token_ids:
            self._end(sequence, FinishReason.STOP, tokens)
        elif len(sequence.emitted) == sequence.request.sampling.max_tokens:
            self._end(sequence, FinishReason.LENGTH, tokens)
        else:
            self._tell(sequence, tokens)

    def _end(self, sequence: Sequence, reason: FinishReason, tokens: tuple[int, ...] = ()) -> None:
        """Ends a sequence and unlocks its path. Pages of a row in flight stay the plan's until its result is in."""
        self._tell(sequence, tokens, reason)
        if sequence in self._waiting:
            self._waiting.remove(sequence)
        else:
            self._running.remove(sequence)
            self._tree.unlock_path(sequence.node)

    def _tell(self, sequence: Sequence, tokens: tuple[int, ...], reason: FinishReason | None = None) -> None:
        index = len(sequence.emitted) - len(tokens)
        self._outputs.append(Output(sequence.request.request_id, 0, sequence.incarnation, index, tokens, reason))

    def take_outputs(self) -> tuple[Output, ...]:
        outputs, self._outputs = tuple(self._outputs), []
        return outputs

    def poll(self) -> int:
        return 0 if self._in_flight is None else 1

    def advance_clock(self, seconds: float) -> None:
        """Nothing here depends on time."""

    def snapshot(self) -> Snapshot:
        held = {} if self._in_flight is None else {self._num_plans: self._in_flight[0].reservation.slots}
        return Snapshot(
            block_size=1,
            num_blocks=self._caps.num_blocks,
            generation=0,
            cache_generation=0,
            free=tuple(self._tree.free),
            cached=self._tree.entries(),
            ref_counts=None,
            reservations=held,
            pinned=(),
            quarantined={},
            plans=tuple(held),
            unsettled=tuple(held),
            waiting=tuple(self._seen(sequence, Status.WAITING) for sequence in self._waiting),
            running=tuple(self._seen(sequence, Status.RUNNING) for sequence in self._running),
        )

    def _seen(self, sequence: Sequence, status: Status) -> SequenceSnapshot:
        committed_len, num_taken = len(sequence.table), len(sequence.taken)
        return SequenceSnapshot(
            *sequence.row_id,
            status=status,
            prompt_len=len(sequence.request.prompt),
            visible_len=len(sequence.request.prompt) + len(sequence.emitted),
            committed_len=committed_len,
            scheduled_len=committed_len + num_taken,
            allocated_len=committed_len + num_taken,
            table=tuple(sequence.table),
            reserved=sequence.taken,
            plans=(self._num_plans,) if num_taken else (),
        )


def _is_placed(item: Media, end: int, length: int) -> bool:
    """Inside the prompt and behind the item before it."""
    return item.length >= 1 and end <= item.start <= length - item.length


def _out_of_range(request: Request) -> str:
    """The first parameter outside its range, as a message; empty if there is none."""
    sampling, length = request.sampling, len(request.prompt)
    media = sorted(request.media, key=lambda item: item.start)
    placed = zip(media, (0, *(item.start + item.length for item in media)), strict=False)
    counts = (sampling.max_tokens, sampling.min_tokens, sampling.seed, sampling.n, sampling.top_k, request.priority)
    integers = (*counts, *(place for item in media for place in (item.start, item.length)))
    rules = (
        ("max_tokens", sampling.max_tokens, "at least 1", sampling.max_tokens >= 1),
        ("min_tokens", sampling.min_tokens, "0 .. max_tokens", 0 <= sampling.min_tokens <= sampling.max_tokens),
        ("temperature", sampling.temperature, "finite and >= 0", 0 <= sampling.temperature < math.inf),
        ("top_k", sampling.top_k, ">= 0", sampling.top_k >= 0),
        ("top_p", sampling.top_p, "> 0 and <= 1", 0 < sampling.top_p <= 1),
        ("min_p", sampling.min_p, ">= 0 and <= 1", 0 <= sampling.min_p <= 1),
        ("seed", sampling.seed, "0 .. 2**64 - 1", 0 <= sampling.seed < 2**64),
        ("n", sampling.n, "1 here", sampling.n == 1),
        ("priority", request.priority, "an integer of 32 bits", -(2**31) <= request.priority < 2**31),
        ("arrival_s", request.arrival_s, "finite", math.isfinite(request.arrival_s)),
        ("deadline_s", request.deadline_s, "finite", math.isfinite(request.deadline_s or 0.0)),
        *(("media", item, f"inside the prompt, from {end} on", _is_placed(item, end, length)) for item, end in placed),
    )
    wrong = next((value for value in integers if type(value) is not int), None)
    if wrong is not None:
        return f"an integer is asked for, found {wrong!r}; change it"
    return next((f"{name} is {rule}, found {value}; change it" for name, value, rule, holds in rules if not holds), "")
