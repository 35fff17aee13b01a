"""A runner whose KV cells are fingerprints: docs/fingerprint.md, executed through tables and slots alone.

Owns: the store, and the tokens sampled last, by row and position (for rows whose input token is still in flight). Never:
which block belongs to whom, or whether what it read is right. It needs rows and slots only, so it runs behind any engine's
plans.

A row is read as the bytes of its blocks, put together, and weighed by one product of vectors; the few words that a row
computes are plain integers, which for a few is quicker than arrays.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import accumulate, chain, repeat
from operator import add, attrgetter
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from engine_under_test.errors import RunnerError
from engine_under_test.execution import cells as law
from engine_under_test.execution.adapter_rows import check_slots
from engine_under_test.execution.asked import NOTHING_TOLD, PromptPart, Told, columns, histories, prompt_parts, require_drawn
from engine_under_test.execution.device import ImmediateDevice
from engine_under_test.execution.landing import DeviceLaunch, Outcome
from engine_under_test.execution.moves import BlockMove, BlockMoves
from engine_under_test.execution.streams import StepStreams, adapter_loads, adapter_pages, fills_and_copies, nothing
from engine_under_test.execution.verifying import Judged, Places, places_of, settled, stand, to_judge
from engine_under_test.sampling.adjustments import NO_PROCESSORS, Processors, stuck_after
from engine_under_test.sampling.host_verification import Address, laws_of, verify_row
from engine_under_test.sampling.noise import PhiloxNoise
from engine_under_test.sampling.sampler import Draws, sample_and_tell
from engine_under_test.seams import Device, DeviceOp, Fence, Grammars, Memory, Noise, Page, StreamDevice
from engine_under_test.types import AdapterLoad, BlockCopy, Plan, Reservation, RowId

BUFFER = "kv"  # of every page that this runner declares
_WORD_BYTES = 8
# A row may want the token of a plan behind which others were lost and launched again; older ones are forgotten.
_LAUNCHES_REMEMBERED = 256

Tables = Sequence[tuple[int, ...]]


class Rows(NamedTuple):
    """The rows of a plan, in columns, as far as they do not depend on the store."""

    ends: list[int]  # start + n
    blocks: list[int]  # of the positions below start + n of each row, row after row
    begins: list[int]  # where each row begins, in cells, when these blocks are read one after the other
    ids: tuple[RowId, ...]


class FingerprintLaunch(DeviceLaunch):
    """One launched plan. ``cells`` is what its rows read, for whoever checks it."""

    __slots__ = ("_row_ends",)

    def __init__(self, plan: Plan, device: Device, row_ids: tuple[RowId, ...], row_ends: tuple[int, ...]) -> None:
        super().__init__(plan, device, row_ids)
        self._row_ends = row_ends

    @property
    def cells(self) -> law.Words:
        """[n, 2]: the cells read through the tables after the plan's writes, rows one after the other."""
        self.result()
        assert self._outcome is not None
        return np.concatenate(self._outcome.more or [_NO_CELLS]).reshape(-1, 2)

    @property
    def row_ends(self) -> tuple[int, ...]:
        """The end of each row in `cells`."""
        return self._row_ends


class FingerprintRunner:
    """Executes plans on a store of ``(num_blocks + 1) * block_size`` fingerprint cells, block 0 being padding.

    With ``num_adapter_slots`` the word of a row's adapter is what its slot holds, else the one of the adapter that it names.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        vocab_size: int,
        *,
        device: Device | None = None,
        noise: Noise | None = None,
        memory: Memory | None = None,
        processors: Processors = NO_PROCESSORS,
        num_adapter_slots: int = 0,
        grammars: Grammars | None = None,
    ) -> None:
        self.store: law.Words = np.full(((num_blocks + 1) * block_size, 2), law.POISON)
        self._adapter_slots = [0, *[int(law.POISON)] * num_adapter_slots]  # the word of each; slot 0 stands for none
        self._words = self.store.data.cast("B").cast("Q")  # the same memory: word 2 * slot + layer
        block_bytes = 2 * block_size * _WORD_BYTES
        whole = self.store.data.cast("B")
        self._block_bytes = [whole[block * block_bytes : (block + 1) * block_bytes] for block in range(num_blocks + 1)]
        self._blocks = self.store.reshape(num_blocks + 1, block_size, 2)
        self._block_size = block_size
        self._vocab_size = vocab_size
        self._device: Device = ImmediateDevice() if device is None else device
        self._streams = StepStreams(self._device, memory) if isinstance(self._device, StreamDevice) else None
        self._noise: Noise = PhiloxNoise() if noise is None else noise
        self._processors = processors
        self._grammars = grammars
        self._all_slots = frozenset(range(len(self.store)))
        self._all_blocks = frozenset(range(num_blocks + 1))
        self._all_tokens = frozenset(range(vocab_size))
        self._pages = tuple(Page(BUFFER, block) for block in range(num_blocks + 1))
        self.block_bytes = block_bytes
        self._moves = BlockMoves(self._device, self._pages, self._get, bytes, self._put, block_bytes, memory)
        self._newest: Fence | None = None  # behind the last launch
        self._token_words = law.mix(np.arange(vocab_size, dtype=np.uint64))
        self._weights = law.digest_weights(256).reshape(-1)
        self._generation: int | None = None
        self._sampled: deque[dict[tuple[RowId, int], int]] = deque(maxlen=_LAUNCHES_REMEMBERED)  # by row and position

    def launch(self, plan: Plan, reservation: Reservation) -> FingerprintLaunch:
        """See `runner.Runner`."""
        ends = list(map(add, plan.starts, plan.num_tokens))
        tables = self._tables_read(reservation, ends)
        blocks = list(chain.from_iterable(tables))
        self._check(plan, reservation, blocks)
        self._grow(max(ends, default=0))
        begins = list(accumulate([len(table) * self._block_size for table in tables], initial=0))
        begins.pop()
        names = [request.request_id for request in plan.requests]
        ids = tuple(map(_ROW_ID, zip(names, plan.choices, plan.incarnations, plan.epochs, strict=True)))
        rows = Rows(ends, blocks, begins, ids)
        launch = FingerprintLaunch(plan, self._device, ids, tuple(accumulate(ends)))
        before, last = self._ops(reservation, blocks)
        launch.put(self._streams, before, last, (plan, reservation, rows), self._run)
        self._newest = launch.fence
        return launch

    def read_block(self, block: int) -> BlockMove:
        """See `runner.Mover`."""
        return self._moves.read(block)

    def write_block(self, block: int, data: bytes) -> BlockMove:
        """See `runner.Mover`."""
        return self._moves.write(block, data, self._newest)

    # On the host, at launch

    def _tables_read(self, reservation: Reservation, ends: Sequence[int]) -> Tables:
        """The part of each table that the row reads: blocks of positions below start + n."""
        size = self._block_size
        wanted = [-(-end // size) for end in ends]
        if list(map(len, reservation.tables)) == wanted:
            return reservation.tables
        for end, num_blocks, table in zip(ends, wanted, reservation.tables, strict=False):
            if len(table) < num_blocks:
                raise RunnerError(
                    f"plan {reservation.plan_id}: a table covers every position below start + n; found {len(table)} blocks of "
                    f"{size} for {end} positions; reserve before launch"
                )
        return [table[:num_blocks] for table, num_blocks in zip(reservation.tables, wanted, strict=False)]

    def _check(self, plan: Plan, reservation: Reservation, blocks: Sequence[int]) -> None:
        """Refuses what would be an access out of bounds, or a plan and a reservation that do not belong together."""
        num_new = sum(plan.num_tokens)
        fits = (
            plan.plan_id == reservation.plan_id
            and len(plan.requests) == len(reservation.tables)
            and min(plan.num_tokens, default=1) >= 1
            and num_new == len(reservation.slots) == len(plan.token_ids) + sum(plan.num_pending)
            and self._all_slots.issuperset(reservation.slots)
            and self._all_tokens.issuperset(plan.token_ids)
            and self._all_blocks.issuperset(blocks)
            and not reservation.fills
            and not reservation.copies
        )
        if not fits:
            self._check_each(plan, reservation, blocks)
        if len(self._adapter_slots) > 1:
            check_slots(plan, reservation, len(self._adapter_slots) - 1)

    def _check_each(self, plan: Plan, reservation: Reservation, blocks: Sequence[int]) -> None:
        """The same, rule by rule, with the first that is broken named; fills and copies, which are rare, only here."""
        num_new, num_pages, copies = sum(plan.num_tokens), len(self._pages), reservation.copies
        found = (
            (plan.plan_id == reservation.plan_id, "plan and reservation have the same identifier"),
            (plan.num_rows == len(reservation.tables), "there is one table for each row"),
            (min(plan.num_tokens, default=1) >= 1, "each row computes at least one position"),
            (num_new == len(reservation.slots), "there is one slot for each position computed"),
            (
                num_new == len(plan.token_ids) + sum(plan.num_pending),
                "there is a token for each position, but for those in flight",
            ),
            (_lie_below(reservation.slots, len(self.store)), "slots lie in the store"),
            (_lie_below(plan.token_ids, self._vocab_size), "tokens lie in the vocabulary"),
            (_lie_below(blocks, num_pages), "tables name blocks of the store"),
            (_lie_below(reservation.fills, num_pages), "fills name blocks of the store"),
            (all(_lie_below(copy[:2], num_pages) for copy in copies), "copies name blocks of the store"),
            (all(copy.num_slots <= self._block_size for copy in copies), "a copy is no longer than a block"),
        )
        for holds, rule in found:
            if not holds:
                raise RunnerError(f"plan {plan.plan_id} can not be launched: {rule}; found {plan} with {reservation}")

    def _grow(self, num_positions: int) -> None:
        if num_positions > len(self._weights) // 2:
            self._weights = law.digest_weights(2 * num_positions).reshape(-1)

    def _ops(self, reservation: Reservation, blocks: list[int]) -> tuple[list[DeviceOp], DeviceOp]:
        """Fills and copies; the rows. What is in this step, with what each touches declared."""
        page = self._pages.__getitem__
        size = self._block_size
        writes = frozenset([page(slot // size) for slot in reservation.slots])
        before = fills_and_copies(self._pages, reservation, self._fill, self._copy)
        reads = frozenset(map(page, blocks))
        if len(self._adapter_slots) > 1 and reservation.adapter_slots:
            before += adapter_loads(reservation, self._load)
            reads |= adapter_pages(reservation)
        return before, DeviceOp("rows", reads, writes, nothing, reservation.plan_id)

    # On the device, now or later

    def _fill(self, blocks: Sequence[int]) -> None:
        self._blocks[list(blocks)] = law.POISON

    def _copy(self, copies: Sequence[BlockCopy]) -> None:
        for source, target, num_slots in copies:
            self._blocks[target, :num_slots] = self._blocks[source, :num_slots]

    def _load(self, loads: Sequence[AdapterLoad]) -> None:
        for slot, adapter in loads:
            self._adapter_slots[slot] = law.adapter_word(adapter)

    def _get(self, block: int) -> bytes:
        return bytes(self._block_bytes[block])

    def _put(self, block: int, data: bytes) -> None:
        self._block_bytes[block][:] = data

    def _run(self, inputs: tuple[Plan, Reservation, Rows]) -> Outcome:
        """The rows of one plan. An error belongs to this launch alone, so it is kept for `result`."""
        plan, reservation, rows = inputs
        try:
            self._begin(plan.generation)
            read = self._compute(plan, reservation, rows)
            places = places_of(plan)
            drawn, told = self._sample(read, plan, places)
        except Exception as error:
            return Outcome(None, error)
        tokens, kept = stand(plan, places, drawn)
        sampled: dict[tuple[RowId, int], int] = {}  # for plans launched behind this one before the host has seen its tokens
        for number in kept:
            sampled[rows.ids[places.rows[number]], places.positions[number]] = drawn[number]
        self._sampled.append(sampled)
        return Outcome(tokens, None, read, told)

    def _begin(self, generation: int) -> None:
        """Nothing is in flight of a generation that is over."""
        if generation != self._generation:
            self._generation = generation
            self._sampled.clear()

    def _compute(self, plan: Plan, reservation: Reservation, rows: Rows) -> list[law.Words]:
        """Writes layer one, reads it through the tables, writes layer two, reads both: the cells read by each row."""
        words, slots = self._words, reservation.slots
        computed = self._layer_one_of(plan, reservation, rows)
        for slot, word in zip(slots, computed, strict=True):
            words[2 * slot] = word
        for slot, word, total in zip(slots, computed, self._running_sums(plan, rows), strict=True):
            words[2 * slot + 1] = law.layer_two(word, total)
        whole = self._read(rows.blocks)
        return [whole[2 * begin : 2 * (begin + end)] for begin, end in zip(rows.begins, rows.ends, strict=True)]

    def _read(self, blocks: Sequence[int]) -> law.Words:
        """The words of these blocks one after the other, as they stand now."""
        return np.frombuffer(b"".join(map(self._block_bytes.__getitem__, blocks)), np.uint64)

    def _running_sums(self, plan: Plan, rows: Rows) -> list[int]:
        """The sum of layer one, as read, up to and with each position that the plan computes.

        All rows at once: what stands in front of a row in the running sum is taken off again, whatever it is.
        """
        sums = np.empty(len(rows.blocks) * self._block_size + 1, np.uint64)
        sums[0] = 0
        self._read(rows.blocks)[::2].cumsum(out=sums[1:])
        last = [
            cell
            for begin, start, end in zip(rows.begins, plan.starts, rows.ends, strict=True)
            for cell in range(begin + start + 1, begin + end + 1)
        ]
        before = (
            rows.begins if len(last) == len(rows.begins) else chain.from_iterable(map(repeat, rows.begins, plan.num_tokens))
        )
        found: list[int] = (sums.take(last) - sums.take(list(before))).tolist()
        return found

    def _layer_one_of(self, plan: Plan, reservation: Reservation, rows: Rows) -> list[int]:
        """Layer one of each position that the plan computes, row after row."""
        starts, nums = plan.starts, plan.num_tokens
        is_single = sum(nums) == len(nums)
        positions = starts if is_single else list(chain.from_iterable(map(range, starts, rows.ends)))
        tokens = self._input_tokens(plan, rows) if 1 in plan.num_pending else plan.token_ids
        adapters: Iterable[int] = _NO_WORDS
        if any(map(_ADAPTER_OF, plan.requests)):
            of_rows = self._adapter_words(plan, reservation)
            adapters = of_rows if is_single else chain.from_iterable(map(repeat, of_rows, nums))
        media: Iterable[int] = _NO_WORDS
        if any(map(_MEDIA_OF, plan.requests)):
            columns = zip(plan.requests, starts, nums, strict=True)
            media = np.concatenate([law.media_words(request.media, start, num) for request, start, num in columns]).tolist()
        return list(map(law.layer_one, positions, tokens, adapters, media))

    def _adapter_words(self, plan: Plan, reservation: Reservation) -> list[int]:
        """What each row reads of its adapter."""
        slots = self._adapter_slots
        if len(slots) == 1:
            return [law.adapter_word(request.adapter) for request in plan.requests]
        return [slots[slot] for slot in reservation.adapter_slots]

    def _input_tokens(self, plan: Plan, rows: Rows) -> list[int]:
        """The tokens that the plan computes on, with those that were in flight at its launch in their places."""
        tokens = list(plan.token_ids)
        columns = zip(accumulate(plan.num_tokens), plan.num_pending, rows.ids, rows.ends, strict=True)
        for place, is_pending, row_id, end in columns:
            if is_pending:
                tokens.insert(place - 1, self._token_in_flight(row_id, end - 1))
        return tokens

    def _token_in_flight(self, row_id: RowId, position: int) -> int:
        for sampled in reversed(self._sampled):
            token = sampled.get((row_id, position))
            if token is not None:
                return token
        raise RunnerError(f"row {row_id} wants a token in flight that none of the last launches sampled")

    def _digests(self, read: Sequence[law.Words], places: Places) -> law.Words:
        """What the cells read by a row weigh together, as far as they stand in front of each of its places."""
        weights = self._weights
        columns = zip(places.rows, places.positions, strict=True)
        return np.array([read[row][: 2 * end].dot(weights[: 2 * end]) for row, end in columns])

    def _sample(self, read: Sequence[law.Words], plan: Plan, places: Places) -> tuple[list[int], Told]:
        """One token for each place, from the digest of what stands before it, and what is told of those that stand."""
        sampled, positions = places
        parts = prompt_parts(plan) if plan.outputs else []
        if not sampled:
            return [], columns(plan, (), (), parts, self._prompt_logits(read, parts)) if parts else NOTHING_TOLD
        digests = self._digests(read, places)
        digests += np.array(positions, dtype=np.uint64)
        requests = [plan.requests[row] for row in sampled]
        draws = Draws(
            [request.sampling for request in requests],
            [plan.choices[row] for row in sampled],
            positions,
            [len(request.prompt) for request in requests],
            histories(plan, places, self._token_in_flight),
        )
        logits = self._logits(digests)
        judged = self._judge(to_judge(plan, places), logits, draws) if plan.draft_laws else NOTHING_SETTLED
        tokens, logprobs, stuck = sample_and_tell(logits, draws, self._noise, self._processors, self._grammars, judged)
        if not (logprobs or parts or stuck):
            return tokens, NOTHING_TOLD
        kept = stand(plan, places, tokens).kept
        require_drawn(stuck, sampled, kept)
        of_kept = [logprobs[number] for number in kept] if logprobs else ()
        return tokens, columns(plan, [sampled[number] for number in kept], of_kept, parts, self._prompt_logits(read, parts))

    def _judge(self, rows: Sequence[Judged], logits: npt.NDArray[np.float64], draws: Draws) -> dict[int, int]:
        """The tokens of the rows whose drafts came from a law."""
        found: dict[int, int] = {}
        for each in rows:
            numbers = range(each.first, each.first + len(each.drafts) + 1)
            own = draws.part(slice(numbers.start, numbers.stop))
            of_row = logits[numbers].copy()
            for place, history in zip(of_row, own.histories, strict=False):
                if history is not None and own.params[0].is_adjusted:
                    stuck_after(place, own.params[0], history, self._processors, self._grammars)
            address = Address(own.params[0].seed, own.choices[0], own.positions[0])
            law = np.asarray(each.law, dtype=np.float64)
            found |= settled(each, *verify_row(address, each.drafts, law, laws_of(of_row, own), self._noise))
        return found

    def _logits(self, digests: law.Words) -> npt.NDArray[np.float64]:
        """[rows, vocabulary]: which token may follow what these digests weigh."""
        return law.logits(law.mix(digests), self._token_words)

    def _prompt_logits(self, read: Sequence[law.Words], parts: Sequence[PromptPart]) -> Iterator[npt.NDArray[np.float64]]:
        """The logits behind each position of each part, in turn."""
        for row, positions, _count in parts:
            digests = self._running_digests(read[row], positions)
            digests += np.arange(positions.start + 1, positions.stop + 1, dtype=np.uint64)
            yield from law.logits(law.mix(digests), self._token_words)

    def _running_digests(self, read: law.Words, positions: range) -> law.Words:
        """What the cells read by a row weigh together, up to and with each of these positions."""
        weighed = read[: 2 * positions.stop] * self._weights[: 2 * positions.stop]
        return weighed.cumsum()[2 * positions.start + 1 :: 2]


NOTHING_SETTLED: dict[int, int] = {}
_NO_CELLS = np.empty(0, dtype=np.uint64)
_NO_WORDS = repeat(0)
_ADAPTER_OF, _MEDIA_OF = attrgetter("adapter"), attrgetter("media")
_ROW_ID = partial(tuple.__new__, RowId)  # as `RowId._make`, without a call of Python


def _lie_below(numbers: Sequence[int], end: int) -> bool:
    return not numbers or (min(numbers) >= 0 and max(numbers) < end)
