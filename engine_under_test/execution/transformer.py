"""A runner that computes a Llama over a paged store of keys and values.

Owns: the store, the order of a step on the device, and the tokens sampled last. Never: which block belongs to whom, the
formulas (`model/llama.py`), how pages are read (`attention.py`) or how a token is chosen (`sampling/`).

The store is poisoned (NaN) when it is made, block by block when a plan fills, and for ever in the padding block. So whoever
reads what nobody wrote for him has NaN among his logits, and no token is taken from such a row: the launch fails and names it
(`RunnerError.rows`), so that its request ends; the rows beside it were computed apart from it and run again without it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import chain, repeat

import torch

from engine_under_test.errors import ConfigError, RunnerError
from engine_under_test.execution.adapter_rows import check_slots, weights_to_load
from engine_under_test.execution.adapter_slots import AdapterLibrary, AdapterSlots, RowAdapters
from engine_under_test.execution.asked import NOTHING_TOLD, PromptPart, columns, prompt_parts, require_drawn
from engine_under_test.execution.attention import Attention, choose_attention, describe
from engine_under_test.execution.batch import check_fit, draws, lay_out, num_bytes
from engine_under_test.execution.device import ImmediateDevice
from engine_under_test.execution.forward import TiledForward, WholeForward
from engine_under_test.execution.graphs import BucketedForward, GraphCache
from engine_under_test.execution.landing import DeviceLaunch, LastSamples, Outcome
from engine_under_test.execution.media import MediaEmbeddings, MediaEncoder
from engine_under_test.execution.memory import StepMemory
from engine_under_test.execution.moves import BlockMove, BlockMoves
from engine_under_test.execution.products import PackedProduct, choose_product
from engine_under_test.execution.rows import KeptRows
from engine_under_test.execution.streams import StepStreams, adapter_loads, adapter_pages, fills_and_copies, nothing
from engine_under_test.execution.tiles import FixedTiles
from engine_under_test.execution.verifying import Judged, Places, places_of, settled, stand, to_judge
from engine_under_test.model.llama import Product
from engine_under_test.model.lora import LoraWeights
from engine_under_test.model.weights import LlamaConfig, LlamaWeights
from engine_under_test.sampling.adjustments import NO_PROCESSORS, Processors
from engine_under_test.sampling.noise import PhiloxNoise
from engine_under_test.sampling.processed import RowState, processed
from engine_under_test.sampling.sampler import Draws, Sampled
from engine_under_test.sampling.speculation import Ask, Proposal
from engine_under_test.sampling.torch_sampler import sample_and_tell
from engine_under_test.sampling.verification import rows_of, verify
from engine_under_test.seams import Device, DeviceOp, Fence, Grammars, Memory, Noise, Page, Space, StreamDevice
from engine_under_test.types import Adapter, AdapterLoad, BlockCopy, History, Plan, Reservation

_TOKEN_BYTES = 8
BUFFER = "kv"  # of pages that this runner declares: keys and values of all layers of a block
ROWS = Page("rows", 0)  # what is kept of the rows of the batch


class TransformerLaunch(DeviceLaunch):
    """One launched plan. ``logits`` is what its sampling rows came to, for whoever checks it."""

    __slots__ = ()

    @property
    def logits(self) -> torch.Tensor:
        """[rows that sample, vocab] float32, before any mask; also there when the launch failed because some are NaN."""
        outcome = self.wait()
        if outcome is None or outcome.more is None:
            self.result()  # raises what went wrong
            raise RunnerError(f"plan {self.plan_id} has no logits")
        logits: torch.Tensor = outcome.more
        return logits


class TransformerRunner:
    """Executes plans on ``(num_blocks + 1) * block_size`` slots of keys and values a layer, block 0 being padding.

    The weights' type and place are those of the whole computation. ``attention``: the back end; without one, what the place
    runs fastest. ``is_batch_invariant``: logits do not depend, in any bit, on what shares a row's batch (slower).
    ``product``: how matrices are multiplied, ``x @ w.T``; of a rank among several, with the sums over all of them.
    ``processors``: what requests name in `SamplingParams.processors`; ``grammars``: what compiles those of requests.
    ``adapters``: where the weights of adapters lie, to be
    loaded into ``num_adapter_slots`` slots as plans say; without it requests with adapters are refused.
    ``packs_weights``: decodes on a CPU are quicker, for three times the weights' memory (float32; not in the invariant mode).
    ``media``: what makes embeddings of items; without it requests with media are refused.
    ``buckets``: batches of decodes are padded to one of these numbers of rows, and each is recorded once (`graphs.py`).
    """

    def __init__(
        self,
        weights: LlamaWeights,
        num_blocks: int,
        block_size: int,
        *,
        attention: Attention | None = None,
        device: Device | None = None,
        noise: Noise | None = None,
        memory: Memory | None = None,
        is_batch_invariant: bool = False,
        packs_weights: bool = False,
        product: Product | None = None,
        buckets: Sequence[int] = (),
        media: MediaEncoder | None = None,
        processors: Processors = NO_PROCESSORS,
        grammars: Grammars | None = None,
        adapters: AdapterLibrary | None = None,
        num_adapter_slots: int = 4,
    ) -> None:
        if is_batch_invariant and product is not None:
            raise ConfigError("the batch-invariant mode has products of its own, found others asked for; leave one of them out")
        if is_batch_invariant and buckets:
            raise ConfigError("the batch-invariant mode has tiles of its own, found buckets asked for; leave one of them out")
        if is_batch_invariant and attention is not None:
            raise ConfigError(
                f"the batch-invariant mode has an attention of its own, found {attention.name} asked for; leave one of them out"
            )
        config = weights.config
        self._library = adapters
        self._slots = None if adapters is None else AdapterSlots(weights, num_adapter_slots, adapters.max_rank)
        self._config: LlamaConfig = config
        self._place = weights.embedding.device
        self._dtype = weights.embedding.dtype
        self._block_size = block_size
        self._num_blocks = num_blocks + 1
        shape = (config.num_layers, (num_blocks + 1) * block_size, config.num_kv_heads, config.head_size)
        self.keys, self.values = (torch.full(shape, torch.nan, dtype=self._dtype, device=self._place) for _ in range(2))
        if is_batch_invariant:
            attention = FixedTiles()
        self._attention = choose_attention(self._place) if attention is None else attention
        self._device: Device = ImmediateDevice() if device is None else device
        self._streams = StepStreams(self._device, memory) if isinstance(self._device, StreamDevice) else None
        self._noise: Noise = PhiloxNoise() if noise is None else noise
        self._processors = processors
        self._grammars = grammars
        self._memory = StepMemory(memory)
        if product is None:
            product = choose_product(weights, packs_weights=packs_weights)
        self._packs = isinstance(product, PackedProduct) and not is_batch_invariant
        self._has_media = media is not None
        items = None if media is None else MediaEmbeddings(media, config.hidden_size, self._dtype, self._place)
        self._forward: TiledForward | WholeForward | BucketedForward
        if is_batch_invariant:
            self._forward = TiledForward(weights, self._attention, self._memory, items)
        elif buckets:
            stores = self.keys, self.values
            self._forward = BucketedForward(weights, self._attention, self._memory, product, buckets, stores, block_size, items)
        else:
            self._forward = WholeForward(weights, self._attention, self._memory, product, items)
        self._pages = tuple(Page(BUFFER, block) for block in range(num_blocks + 1))
        one = self.keys[:, :block_size]
        self.block_bytes = 2 * one.numel() * one.element_size()
        self._moves = BlockMoves(self._device, self._pages, self._get, bytes_of, self._put, self.block_bytes, memory)
        self._newest: Fence | None = None  # behind the last launch
        self._last = LastSamples()
        self.rows = KeptRows(block_size)  # as the device has them: they follow the plan whose rows it runs

    @property
    def description(self) -> str:
        """What computes, where: printed by whoever starts it."""
        packed = ", packed weights" if self._packs else ""
        if self.graphs is not None:
            packed += f", buckets of {', '.join(map(str, self.graphs.buckets.sizes))}"
        return f"{describe(self._attention, self._place)}, {str(self._dtype).removeprefix('torch.')}{packed}"

    @property
    def graphs(self) -> GraphCache | None:
        """The recordings of decodes, where there are buckets."""
        return self._forward.graphs if isinstance(self._forward, BucketedForward) else None

    def launch(self, plan: Plan, reservation: Reservation) -> TransformerLaunch:
        """See `runner.Runner`."""
        self._check(plan, reservation)
        launch = TransformerLaunch(plan, self._device, tuple(plan.row_ids()))
        before, last = self._ops(plan, reservation)
        launch.put(self._streams, before, last, (plan, reservation), self._run)
        self._newest = launch.fence
        return launch

    def read_block(self, block: int) -> BlockMove:
        """See `runner.Mover`: keys, then values, by layer."""
        return self._moves.read(block)

    def write_block(self, block: int, data: bytes) -> BlockMove:
        """See `runner.Mover`."""
        return self._moves.write(block, data, self._newest)

    # On the host, at launch

    def _check(self, plan: Plan, reservation: Reservation) -> None:
        check_fit(plan, reservation, self._num_blocks, self._block_size, self._config.vocab_size)
        if self._slots is not None:
            check_slots(plan, reservation, self._slots.num_slots)
        has_adapters = self._slots is not None
        foreign = [
            row
            for row, request in enumerate(plan.requests)
            if (request.media and not self._has_media) or (request.adapter is not None and not has_adapters)
        ]
        if foreign:
            names = ", ".join(repr(plan.requests[row].request_id) for row in foreign)
            raise RunnerError(
                f"plan {plan.plan_id} can not be launched: this model computes text without adapters, found an adapter or "
                f"media in {names}; send it to a model that has them",
                tuple(foreign),
            )

    def _ops(self, plan: Plan, reservation: Reservation) -> tuple[list[DeviceOp], DeviceOp]:
        """Fills and copies; the rows. What is in this step, with what each touches declared."""
        page = self._pages.__getitem__
        writes = frozenset(page(slot // self._block_size) for slot in reservation.slots)
        reads = frozenset(page(block) for table in reservation.tables for block in table)
        before = fills_and_copies(self._pages, reservation, self._fill, self._copy)
        if self._library is not None and reservation.adapter_slots:
            before += adapter_loads(reservation, partial(self._load, weights_to_load(plan, reservation, self._library)))
            reads |= adapter_pages(reservation)
        return before, DeviceOp("rows", reads | {ROWS}, writes | {ROWS}, nothing, reservation.plan_id)

    # On the device, now or later

    @torch.inference_mode()
    def _fill(self, blocks: Sequence[int]) -> None:
        for store in (self.keys, self.values):
            by_block = store.view(len(store), self._num_blocks, -1)
            by_block[:, list(blocks)] = torch.nan

    @torch.inference_mode()
    def _copy(self, copies: Sequence[BlockCopy]) -> None:
        size = self._block_size
        for source, target, num_slots in copies:
            for store in (self.keys, self.values):
                store[:, target * size : target * size + num_slots] = store[:, source * size : source * size + num_slots]

    @torch.inference_mode()
    def _load(self, weights: Mapping[Adapter, LoraWeights], loads: Sequence[AdapterLoad]) -> None:
        assert self._slots is not None  # nothing is loaded where there are no slots
        for slot, adapter in loads:
            self._slots.load(slot, weights[adapter])

    @torch.inference_mode()
    def _get(self, block: int) -> torch.Tensor:
        """[2, layers, block, KV heads, head], on the host once the device has come to it."""
        slots = slice(block * self._block_size, (block + 1) * self._block_size)
        both = torch.stack((self.keys[:, slots], self.values[:, slots]))
        return both.to("cpu", non_blocking=True)

    @torch.inference_mode()
    def _put(self, block: int, data: bytes) -> None:
        slots = slice(block * self._block_size, (block + 1) * self._block_size)
        both = torch.frombuffer(bytearray(data), dtype=self._dtype).view(2, *self.keys[:, slots].shape)
        self.keys[:, slots], self.values[:, slots] = both[0], both[1]

    @torch.inference_mode()
    def _run(self, inputs: tuple[Plan, Reservation]) -> Outcome:
        """The rows of one plan. An error belongs to this launch alone, so it is kept for `result`."""
        plan, reservation = inputs
        logits: torch.Tensor | None = None
        try:
            self._last.begin(plan.generation)
            parts = prompt_parts(plan) if plan.outputs else []
            whole = self._compute(plan, reservation, parts)
            places = places_of(plan)
            rows = list(places.rows)
            logits = whole[: len(rows)]
            _require_finite(plan, rows + [part.row for part in parts for _ in part.positions], whole)
            asked = draws(plan, self.rows)
            if rows:
                self._memory.take("tokens on the host", _TOKEN_BYTES * len(rows), Space.HOST)
            drawn, logprobs, stuck = self._sample(plan, places, logits, asked)
            tokens, kept = stand(plan, places, drawn)
            require_drawn(stuck, rows, kept)
            told = NOTHING_TOLD
            if logprobs or parts:
                prompt_logits = whole[len(rows) :].to("cpu", torch.float64).numpy()
                of_kept = [logprobs[number] for number in kept] if logprobs else ()
                told = columns(plan, [rows[number] for number in kept], of_kept, parts, prompt_logits)
        except torch.OutOfMemoryError as error:
            failure = RunnerError(f"out of device memory: {error}; run fewer rows at once, or make the pool smaller")
            return Outcome(None, failure, logits)
        except Exception as error:
            return Outcome(None, error, logits)
        for row in dict.fromkeys(rows):
            self.rows.sampled(row, tokens[row], plan.num_drafts[row] if plan.num_drafts else 0)
        row_ids = plan.row_ids()
        self._last.remember([(row_ids[rows[number]], places.positions[number], drawn[number]) for number in kept])
        return Outcome(tokens, None, logits, told)

    def _sample(self, plan: Plan, places: Places, logits: torch.Tensor, asked: Draws) -> Sampled:
        if not asked.params:
            return Sampled([])
        judged = self._judge(plan, to_judge(plan, places), logits, asked) if plan.draft_laws else {}
        return sample_and_tell(logits, asked, self._noise, self._processors, self._grammars, judged)

    def _judge(self, plan: Plan, rows: Sequence[Judged], logits: torch.Tensor, asked: Draws) -> dict[int, int]:
        """The tokens of the rows whose drafts came from a law."""
        if not rows:
            return {}
        numbers = [each.first + place for each in rows for place in range(len(each.drafts) + 1)]
        states = [RowState(asked.params[number], _history_at(asked, number)) for number in numbers]
        asks = [
            Ask(
                plan.row_id(each.row),
                range(asked.positions[each.first]),
                asked.params[each.first],
                len(each.drafts),
                asked.prompt_lens[each.first],
            )
            for each in rows
        ]
        laws = torch.cat([torch.as_tensor(each.law, dtype=torch.float64, device=logits.device) for each in rows])
        proposal = Proposal(tuple(each.drafts for each in rows), laws)
        target = processed(logits[numbers], states, self._processors, self._grammars)
        verdicts = verify(rows_of(asks, proposal, target), self._noise)
        found: dict[int, int] = {}
        for each, num_accepted, token in zip(rows, verdicts.num_accepted.tolist(), verdicts.tokens.tolist(), strict=True):
            found |= settled(each, num_accepted, token)
        return found

    def _compute(self, plan: Plan, reservation: Reservation, parts: Sequence[PromptPart]) -> torch.Tensor:
        """The logits of the rows that sample, then those of the parts of prompts."""
        self._memory.take("the batch on the host", num_bytes(plan, reservation), Space.HOST)
        self._memory.take("the batch", num_bytes(plan, reservation))
        self.rows.follow(plan, reservation, self._last.find)
        batch = lay_out(plan, reservation, self.rows, self._block_size, self._place, parts)
        for place, row in batch.pending:
            batch.tokens[place] = self._last.find(row, int(batch.positions[place]))
        return self._forward(batch, self.keys, self.values, self._adapters_of(plan, reservation))

    def _adapters_of(self, plan: Plan, reservation: Reservation) -> RowAdapters | None:
        """Token by token; None if no row has one."""
        if self._slots is None or not any(reservation.adapter_slots):
            return None
        of_tokens = chain.from_iterable(map(repeat, reservation.adapter_slots, plan.num_tokens))
        return RowAdapters(self._slots, tuple(of_tokens))


def _history_at(asked: Draws, number: int) -> History:
    """Of a draw; of one that needs none its length alone counts."""
    history = asked.histories[number] if asked.histories else None
    if history is None:
        return History((), (0,) * (asked.positions[number] - asked.prompt_lens[number]))
    return history


def bytes_of(block: torch.Tensor) -> bytes | None:
    """The bytes of a block as `TransformerRunner` brings it to the host; None if one of its numbers is none."""
    if not block.isfinite().all():
        return None
    return block.contiguous().view(torch.uint8).numpy().tobytes()


def _require_finite(plan: Plan, rows: Sequence[int], logits: torch.Tensor) -> None:
    """No token is taken from NaN or infinity."""
    if not rows:
        return
    lowest, highest = logits.aminmax(dim=1)
    is_finite = (lowest.isfinite() & highest.isfinite()).tolist()
    bad = [row for row, is_good in zip(rows, is_finite, strict=True) if not is_good]
    if bad:
        names = ", ".join(f"{plan.requests[row].request_id!r} choice {plan.choices[row]}" for row in bad)
        raise RunnerError(
            f"logits must be finite, found NaN or infinity in {names}: a slot was read that was never written for it, or the "
            "weights overflow",
            tuple(bad),
            distrusts=True,
        )
