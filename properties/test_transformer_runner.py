"""The transformer runner behind the engine: its tokens are those of a plain dense loop, however scheduled and paged."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

import pytest
import torch
from torch.nn import functional

from engine_under_test import Engine, EngineConfig, FinishReason, Output, Request, SamplingParams
from engine_under_test.errors import ConfigError, RunnerError
from engine_under_test.execution.attention import Attention, Eager, PagedTorch, PagedTriton, choose_attention
from engine_under_test.execution.products import PackedProduct, choose_product
from engine_under_test.execution.transformer import BUFFER, ROWS, TransformerRunner
from engine_under_test.model.weights import LlamaConfig, LlamaWeights, tiny_random
from engine_under_test.seams import Page
from engine_under_test.types import BlockCopy, Media, Plan, PlannedStep, Reservation
from properties.doubles import HeldDevice

SHAPE = LlamaConfig(vocab_size=96, hidden_size=32, num_layers=2, num_heads=6, num_kv_heads=2, head_size=8, intermediate_size=40)
WEIGHTS = tiny_random(SHAPE, 1)
ENGINE = EngineConfig(num_blocks=48, block_size=4, max_tokens_per_step=11, max_num_seqs=5, vocab_size=SHAPE.vocab_size)

Key = tuple[str, int]


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


# ---- the plain loop: no cache, no batch, float64 ----


def dense_logits(weights: LlamaWeights, tokens: Sequence[int]) -> torch.Tensor:
    """[vocab] behind the last token, from all of them at once."""
    config = weights.config
    weights = weights.to(dtype=torch.float64)
    half, group = config.head_size // 2, config.num_heads // config.num_kv_heads
    turns = torch.arange(len(tokens))[:, None] * config.rope_theta ** -(torch.arange(half, dtype=torch.float64) / half)

    def norm(x: torch.Tensor, gain: torch.Tensor) -> torch.Tensor:
        return x / (x.square().mean(1, keepdim=True) + config.rms_eps).sqrt() * gain

    def turned(x: torch.Tensor) -> torch.Tensor:
        pairs = torch.complex(x[..., :half], x[..., half:]) * torch.polar(torch.ones_like(turns), turns)[:, None]
        return torch.cat((pairs.real, pairs.imag), dim=-1)

    x = weights.embedding[list(tokens)]
    is_later = torch.ones(len(tokens), len(tokens), dtype=torch.bool).triu(1)
    for layer in weights.layers:
        normed = norm(x, layer.attention_norm)
        q, k, v = ((normed @ matrix.T).reshape(len(tokens), -1, config.head_size) for matrix in (layer.q, layer.k, layer.v))
        heads = []
        for head in range(config.num_heads):
            scores = turned(q)[:, head] @ turned(k)[:, head // group].T / config.head_size**0.5
            heads.append(scores.masked_fill(is_later, -torch.inf).softmax(1) @ v[:, head // group])
        x = x + torch.cat(heads, dim=1) @ layer.o.T
        normed = norm(x, layer.mlp_norm)
        x = x + (functional.silu(normed @ layer.gate.T) * (normed @ layer.up.T)) @ layer.down.T
    return norm(x[-1:], weights.final_norm)[0] @ weights.head.T


@lru_cache(maxsize=4096)
def greedy_continuation(prompt: tuple[int, ...], num: int) -> tuple[int, ...]:
    tokens = list(prompt)
    for _ in range(num):
        tokens.append(int(dense_logits(WEIGHTS, tokens).argmax()))
    return tuple(tokens[len(prompt) :])


# ---- the engine ----


def prompt_of(length: int, salt: int = 0) -> tuple[int, ...]:
    return tuple((salt * 31 + place * place * 7 + place * 5) % SHAPE.vocab_size for place in range(length))


SHARED = prompt_of(9, 4)
REQUESTS = [
    Request("one", prompt_of(1, 1), SamplingParams(max_tokens=7)),
    Request("whole blocks", prompt_of(8, 2), SamplingParams(max_tokens=5)),
    Request("long", prompt_of(33, 3), SamplingParams(max_tokens=9)),
    Request("shared", SHARED + prompt_of(4, 5), SamplingParams(max_tokens=6)),
    Request("shared too", SHARED + prompt_of(6, 6), SamplingParams(max_tokens=6)),
    Request("forked", prompt_of(10, 7), SamplingParams(max_tokens=5, n=3)),
    Request("warm", prompt_of(12, 8), SamplingParams(max_tokens=6, temperature=0.8, top_p=0.9, seed=5, n=2)),
]


def drain(engine: Engine) -> dict[Key, tuple[int, ...]]:
    tokens: dict[Key, tuple[int, ...]] = {}
    for _ in range(2000):
        if not engine.has_work:
            break
        engine.step()
    assert not engine.has_work, "the engine did not come to its end"
    for output in engine.take_outputs():
        assert output.finish_reason in (None, FinishReason.LENGTH), output.message
        key = output.request_id, output.choice
        tokens[key] = tokens.get(key, ()) + output.token_ids
    return tokens


def run(config: EngineConfig, requests: Sequence[Request], attention: Attention | None = None) -> dict[Key, tuple[int, ...]]:
    runner = TransformerRunner(WEIGHTS, config.num_blocks, config.block_size, attention=attention)
    engine = Engine(config, runner)
    for request in requests:
        assert engine.submit(request).is_accepted
    return drain(engine)


@lru_cache(maxsize=1)
def alone() -> Mapping[Key, tuple[int, ...]]:
    """Each request on its own in a new engine, whole and never cached."""
    plain = replace(ENGINE, max_tokens_per_step=64, prefix_cache=False, batching=False, chunking=False)
    return {key: tokens for request in REQUESTS for key, tokens in run(plain, [request]).items()}


def test_greedy_tokens_are_those_of_the_dense_loop() -> None:
    for request in REQUESTS:
        if request.sampling.temperature == 0:
            for choice in range(request.sampling.n):
                expected = greedy_continuation(request.prompt, request.sampling.max_tokens)
                assert alone()[request.request_id, choice] == expected


SWITCHES = {
    "everything on": ENGINE,
    "depth 1": replace(ENGINE, max_plans_in_flight=2),
    "depth 2": replace(ENGINE, max_plans_in_flight=3),
    "no prefix cache": replace(ENGINE, prefix_cache=False),
    "no batching": replace(ENGINE, batching=False),
    "no chunking": replace(ENGINE, chunking=False, max_tokens_per_step=64),
    "chunks of odd sizes": replace(ENGINE, max_tokens_per_step=5, max_num_seqs=3, max_plans_in_flight=2),
    "so few blocks that requests are preempted": replace(ENGINE, num_blocks=12, max_plans_in_flight=2),
}


@pytest.mark.parametrize("attention", [PagedTorch, Eager], ids=["paged attention", "eager attention"])
@pytest.mark.parametrize("block_size", [1, 4, 16])
@pytest.mark.parametrize("config", SWITCHES.values(), ids=SWITCHES.keys())
def test_tokens_do_not_depend_on_how_a_request_is_scheduled(
    config: EngineConfig, block_size: int, attention: type[Attention]
) -> None:
    num_blocks = config.num_blocks * 4 // block_size
    config = replace(config, block_size=block_size, num_blocks=num_blocks)
    assert run(config, REQUESTS, attention()) == alone()


def test_the_scheduled_run_preempts_hits_and_forks() -> None:
    """The cases above would prove little if these never happened."""
    config = SWITCHES["so few blocks that requests are preempted"]
    engine = Engine(config, TransformerRunner(WEIGHTS, config.num_blocks, config.block_size))
    for request in REQUESTS:
        engine.submit(request)
    drain(engine)
    assert engine.counters.preempted > 0
    assert engine.counters.cached_tokens > 0


# ---- rows that are to blame ----

SICK = 95  # a token without an embedding: whoever has read it comes to NaN


@pytest.mark.parametrize("num_plans", [1, 2, 3], ids=["depth 0", "depth 1", "depth 2"])
def test_a_row_of_nan_ends_with_the_reason_and_its_batch_mates_are_unharmed(num_plans: int) -> None:
    embedding = WEIGHTS.embedding.clone()
    embedding[SICK] = torch.nan
    healthy = [request for request in REQUESTS if SICK not in request.prompt]
    config = replace(ENGINE, max_plans_in_flight=num_plans)
    runner = TransformerRunner(replace(WEIGHTS, embedding=embedding), config.num_blocks, config.block_size)
    engine = Engine(config, runner)
    sick = Request("sick", (1, SICK, 2), SamplingParams(max_tokens=4))
    for request in [healthy[0], sick, *healthy[1:]]:
        engine.submit(request)
    outputs: list[Output] = []
    while engine.has_work:
        engine.step()
        outputs += engine.take_outputs()
    (ended,) = [output for output in outputs if output.request_id == "sick"]
    assert ended.finish_reason is FinishReason.ERROR
    assert "found NaN or infinity in 'sick' choice 0" in ended.message
    tokens: dict[Key, tuple[int, ...]] = {}
    for output in outputs:
        if output.request_id != "sick":
            key = output.request_id, output.choice
            tokens[key] = tokens.get(key, ()) + output.token_ids
    assert tokens == {key: alone()[key] for key in alone() if key[0] in {request.request_id for request in healthy}}
    engine.poll()
    assert len(engine.snapshot().free) == config.num_blocks


def test_media_end_their_request_alone() -> None:
    engine = Engine(ENGINE, new_runner())
    picture = Request("picture", prompt_of(6), SamplingParams(max_tokens=2), media=(Media("cat", 1, 2),))
    for request in (REQUESTS[0], picture, REQUESTS[1]):
        assert engine.submit(request).is_accepted
    outputs: list[Output] = []
    while engine.has_work:
        engine.step()
        outputs += engine.take_outputs()
    ends = {output.request_id: output.finish_reason for output in outputs if output.finish_reason is not None}
    assert ends == {"one": FinishReason.LENGTH, "picture": FinishReason.ERROR, "whole blocks": FinishReason.LENGTH}


# ---- poison, declarations, refusals ----


def reserved(requests: Sequence[Request], runner: TransformerRunner) -> PlannedStep:
    engine = Engine(ENGINE, runner)
    for request in requests:
        engine.submit(request)
    step = engine.reserve()
    assert step is not None
    return step


def new_runner(device: HeldDevice | None = None) -> TransformerRunner:
    return TransformerRunner(WEIGHTS, ENGINE.num_blocks, ENGINE.block_size, device=device)


TWO = [Request("left", prompt_of(5, 1)), Request("right", prompt_of(6, 2))]


@pytest.mark.parametrize("attention", [PagedTorch, Eager], ids=["paged attention", "eager attention"])
@pytest.mark.parametrize("wrong", [0, 40], ids=["the padding block", "a block never written"])
def test_a_wrong_block_in_a_table_is_seen_and_harms_no_one_else(wrong: int, attention: type[Attention]) -> None:
    step = reserved(TWO, new_runner())
    right = new_runner().launch(step.plan, step.reservation)
    (left, other) = step.reservation.tables
    tables = ((wrong, *left[1:]), other)
    runner = TransformerRunner(WEIGHTS, ENGINE.num_blocks, ENGINE.block_size, attention=attention())
    launch = runner.launch(step.plan, replace(step.reservation, tables=tables))
    with pytest.raises(RunnerError, match="finite, found NaN or infinity in 'left' choice 0:"):
        launch.result()
    assert launch.logits[0].isnan().all()
    assert torch.allclose(launch.logits[1], right.logits[1], atol=1e-5)
    assert runner.launch(step.plan, step.reservation).result() == right.result(), "what failed left nothing behind"


def test_poison_is_in_every_slot_that_no_plan_wrote() -> None:
    runner = new_runner()
    step = reserved(TWO, runner)
    runner.launch(step.plan, step.reservation).result()
    is_poison = runner.keys.isnan().all(dim=(0, 2, 3)) & runner.values.isnan().all(dim=(0, 2, 3))
    assert {slot for slot, is_left in enumerate(is_poison.tolist()) if not is_left} == set(step.reservation.slots)


def test_fills_and_copies_come_before_the_rows_and_all_is_declared() -> None:
    device = HeldDevice()
    runner = new_runner(device)
    step = reserved(TWO[:1], runner)
    used = step.reservation.tables[0]
    runner.launch(step.plan, step.reservation).result()
    before = runner.keys.clone()
    device.ops.clear()
    reservation = replace(
        step.reservation, fills=(used[1], 30), copies=(BlockCopy(used[0], 31, 3),), tables=(used,), slots=step.reservation.slots
    )
    launch = runner.launch(step.plan, reservation)
    assert [op.name for op in device.ops] == ["fill", "copy", "rows"]
    fill, copy, rows = device.ops
    assert fill.writes == {Page(BUFFER, used[1]), Page(BUFFER, 30)}
    assert copy.reads == {Page(BUFFER, used[0])}
    assert copy.writes == {Page(BUFFER, 31)}
    assert rows.reads == {ROWS, *(Page(BUFFER, block) for block in used)}
    assert rows.writes == {ROWS, *(Page(BUFFER, slot // 4) for slot in reservation.slots)}
    assert torch.equal(runner.keys.nan_to_num(), before.nan_to_num()), "nothing runs before the device does"
    launch.result()
    assert torch.equal(runner.keys[:, 31 * 4 : 31 * 4 + 3], runner.keys[:, used[0] * 4 : used[0] * 4 + 3])
    assert runner.keys[:, 31 * 4 + 3 : 32 * 4].isnan().all()
    assert runner.values[:, 30 * 4 : 31 * 4].isnan().all()


MISFITS: dict[str, Callable[[Plan, Reservation], tuple[Plan, Reservation]]] = {
    "have the same identifier": lambda p, r: (p, replace(r, plan_id=99)),
    "one table for each row": lambda p, r: (p, replace(r, tables=r.tables[:1])),
    "one slot for each position": lambda p, r: (p, replace(r, slots=r.slots[1:])),
    "slots lie in the store": lambda p, r: (p, replace(r, slots=(10_000, *r.slots[1:]))),
    "tokens lie in the vocabulary": lambda p, r: (replace(p, token_ids=(96, *p.token_ids[1:])), r),
    "tables name blocks": lambda p, r: (p, replace(r, tables=((77, *r.tables[0][1:]), *r.tables[1:]))),
    "covers every position": lambda p, r: (p, replace(r, tables=(r.tables[0][:1], *r.tables[1:]))),
    "fills name blocks": lambda p, r: (p, replace(r, fills=(-1,))),
    "copy is no longer than a block": lambda p, r: (p, replace(r, copies=(BlockCopy(1, 2, 5),))),
    "text without adapters": lambda p, r: (
        replace(p, requests=(replace(p.requests[0], media=(Media("cat", 0, 1),)), *p.requests[1:])),
        r,
    ),
}


@pytest.mark.parametrize("rule", MISFITS)
def test_a_plan_and_a_reservation_that_do_not_fit_are_refused(rule: str) -> None:
    runner = new_runner()
    step = reserved(TWO, runner)
    with pytest.raises(RunnerError, match=rule):
        runner.launch(*MISFITS[rule](step.plan, step.reservation))
    assert runner.keys.isnan().all(), "nothing of it was executed"


def test_a_token_in_flight_that_nobody_sampled_fails_its_launch_alone() -> None:
    runner = new_runner()
    step = reserved(TWO, runner)
    plan = replace(step.plan, token_ids=step.plan.token_ids[:4] + step.plan.token_ids[5:], num_pending=(1, 0))
    with pytest.raises(RunnerError, match="wants a token in flight"):
        runner.launch(plan, step.reservation).result()
    runner.launch(step.plan, step.reservation).result()


def test_the_back_end_is_chosen_by_device_or_by_name_and_says_what_it_is() -> None:
    cpu = torch.device("cpu")
    assert isinstance(choose_attention(cpu), PagedTorch)
    assert isinstance(choose_attention(cpu, "eager"), Eager)
    assert new_runner().description == "attention paged-torch on cpu, 1 threads, float32"
    with pytest.raises(ConfigError, match="paged-torch, eager, paged-triton, found 'flash'; choose one"):
        choose_attention(cpu, "flash")


@pytest.mark.parametrize("is_batch_invariant", [False, True], ids=["whole batches", "fixed tiles"])
def test_bfloat16_comes_close_to_float64(is_batch_invariant: bool) -> None:
    weights = WEIGHTS.to(dtype=torch.bfloat16)
    runner = TransformerRunner(weights, ENGINE.num_blocks, ENGINE.block_size, is_batch_invariant=is_batch_invariant)
    step = reserved(TWO, runner)
    logits = runner.launch(step.plan, step.reservation).logits
    assert logits.dtype is torch.float32
    for row, request in zip(logits, step.plan.requests, strict=True):
        exact = dense_logits(weights, request.prompt)
        assert (row - exact).abs().max() < 0.05 * exact.abs().max()


@pytest.mark.parametrize("num_rows", [1, 2, 8, 33])
def test_packed_weights_give_the_same_products_up_to_rounding(num_rows: int) -> None:
    packed = choose_product(WEIGHTS, packs_weights=True)
    assert isinstance(packed, PackedProduct) == torch._C._has_mkldnn
    layer = WEIGHTS.layers[1]
    for matrix in (layer.q, layer.k, layer.o, layer.gate, layer.down, WEIGHTS.head):
        x = torch.randn(num_rows, matrix.shape[1], generator=torch.Generator().manual_seed(num_rows))
        assert torch.allclose(packed(x, matrix), x @ matrix.T, rtol=1e-4, atol=1e-4)


def test_tokens_with_packed_weights_are_the_same() -> None:
    runner = TransformerRunner(WEIGHTS, ENGINE.num_blocks, ENGINE.block_size, packs_weights=True)
    engine = Engine(ENGINE, runner)
    for request in REQUESTS:
        engine.submit(request)
    assert drain(engine) == alone()


def test_the_triton_kernels_stand_behind_the_same_runner() -> None:
    """Under Triton's interpreter, in chunks beside decodes: the tokens of attention in torch."""
    shape = LlamaConfig(96, 64, num_layers=1, num_heads=3, num_kv_heads=1, head_size=64, intermediate_size=40)
    weights = tiny_random(shape, 4)
    config = replace(ENGINE, block_size=16, num_blocks=8, max_tokens_per_step=24)
    requests = [Request(str(length), prompt_of(length, length), SamplingParams(max_tokens=3)) for length in (5, 17, 30)]
    found = []
    for attention in (PagedTriton(), PagedTorch()):
        engine = Engine(config, TransformerRunner(weights, config.num_blocks, 16, attention=attention))
        for request in requests:
            engine.submit(request)
        found.append(drain(engine))
    assert found[0] == found[1]
