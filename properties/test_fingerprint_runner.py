"""The fingerprint runner shows whatever went wrong in its cells, and is what docs/fingerprint.md works out."""

from __future__ import annotations

import dataclasses
import itertools
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from engine_under_test.errors import RunnerError
from engine_under_test.execution.cells import POISON
from engine_under_test.execution.fingerprint import FingerprintLaunch, FingerprintRunner
from engine_under_test.seams import DeviceOp, Page
from engine_under_test.types import Adapter, BlockCopy, Media, Plan, Request, Reservation, SamplingParams
from properties.doubles import FailingRunner, HeldDevice

BLOCK = 2
PROMPT = (1, 2, 2, 3, 0)
BASE = Request("a", PROMPT, adapter=Adapter("lora", 2), media=(Media("sha256:cat", 1, 2),))
# docs/fingerprint.md, "Worked examples", two
DOCUMENTED_CELLS = [
    (0x3FB504E1D9FC1A81, 0x677744995FC13168),
    (0xC89EEB6699B99A2C, 0x18E09192842387A0),
    (0x1C5750BF12DC591C, 0x3CC15F1749CE3D89),
    (0x794C2706E2AC01C7, 0x21869956CA9CF646),
    (0xBCF5DF4B987A6221, 0x178F1F0E13E9D4E3),
]


@dataclasses.dataclass(frozen=True)
class Row:
    """One row of a plan, with the tokens it computes written out and its table."""

    request: Request
    start: int
    tokens: tuple[int, ...]
    table: tuple[int, ...]
    samples: bool = True
    choice: int = 0
    epoch: int = 0
    is_pending: bool = False  # the last input token is in flight; `tokens` lacks it

    @property
    def num(self) -> int:
        return len(self.tokens) + self.is_pending

    def slots(self, block_size: int) -> tuple[int, ...]:
        positions = range(self.start, self.start + self.num)
        return tuple(self.table[p // block_size] * block_size + p % block_size for p in positions)


def plan_of(*rows: Row, plan_id: int = 1, block_size: int = BLOCK, generation: int = 0) -> tuple[Plan, Reservation]:
    def column(of: Callable[[Row], Any]) -> tuple[Any, ...]:
        return tuple(of(row) for row in rows)

    plan = Plan(
        plan_id=plan_id,
        generation=generation,
        requests=column(lambda row: row.request),
        choices=column(lambda row: row.choice),
        incarnations=(0,) * len(rows),
        epochs=column(lambda row: row.epoch),
        starts=column(lambda row: row.start),
        num_tokens=column(lambda row: row.num),
        token_ids=tuple(token for row in rows for token in row.tokens),
        num_pending=column(lambda row: int(row.is_pending)),
        samples=column(lambda row: row.samples),
        hit_blocks=((),) * len(rows),
    )
    slots = tuple(slot for row in rows for slot in row.slots(block_size))
    return plan, Reservation(plan_id, column(lambda row: row.table), slots, ((),) * len(rows))


def runner(**seams: Any) -> FingerprintRunner:
    return FingerprintRunner(12, BLOCK, 8, **seams)


def launch(on: FingerprintRunner, *rows: Row, **identity: int) -> FingerprintLaunch:
    return on.launch(*plan_of(*rows, **identity))


def pairs(cells: np.ndarray[Any, np.dtype[np.uint64]]) -> list[tuple[int, ...]]:
    return [tuple(cell) for cell in cells.tolist()]


WHOLE = Row(BASE, 0, PROMPT, (3, 1, 2))


# What the page works out


def test_cells_and_greedy_token_are_the_documented_ones() -> None:
    found = launch(runner(), WHOLE)
    assert pairs(found.cells) == DOCUMENTED_CELLS
    assert found.result().tokens == ((4,),)
    masked = dataclasses.replace(BASE, sampling=SamplingParams(min_tokens=1, stop_token_ids=(4,)))
    assert launch(runner(), dataclasses.replace(WHOLE, request=masked)).result().tokens == ((3,),)


@pytest.mark.parametrize(
    ("seed", "expected"),
    [(7, [3, 4, 4, 3, 3, 3, 4, 4]), (0x0123456789ABCDEF, [4, 4, 4, 3, 4, 4, 3, 4])],
    ids=["small seed", "wide seed"],
)
def test_sampled_tokens_are_the_documented_ones(seed: int, expected: list[int]) -> None:
    request = dataclasses.replace(BASE, sampling=SamplingParams(temperature=1.0, seed=seed, n=8))
    prefill = Row(request, 0, PROMPT[:4], (3, 1), samples=False)
    on = runner()
    launch(on, prefill)
    last = [Row(request, 4, PROMPT[4:], (3, 1, 4 + choice), choice=choice) for choice in range(8)]
    assert launch(on, *last).result().tokens == tuple((token,) for token in expected)


def test_a_prompt_without_adapter_and_media_gives_the_documented_token() -> None:
    on = FingerprintRunner(12, 1, 8)
    plain = launch(on, Row(Request("a", (5, 0, 7)), 0, (5, 0, 7), (9, 4, 6)), block_size=1)
    assert pairs(plain.cells)[2] == (0xD3BA58C9D1AA0ED1, 0xEF0F7694A14E1555)
    assert plain.result().tokens == ((3,),)


# What does not matter


@pytest.mark.parametrize("cuts", [(1, 2, 3, 4), (3,), (2, 4)], ids=["token by token", "two chunks", "whole blocks"])
def test_chunks_give_the_cells_of_the_whole_prompt(cuts: tuple[int, ...]) -> None:
    on = runner()
    edges = (0, *cuts, len(PROMPT))
    found = [launch(on, Row(BASE, a, PROMPT[a:b], WHOLE.table)) for a, b in itertools.pairwise(edges)]
    assert pairs(found[-1].cells) == DOCUMENTED_CELLS
    assert found[-1].result().tokens == ((4,),)


@pytest.mark.parametrize("block_size", [1, 2, 3, 16])
def test_the_block_size_does_not_matter(block_size: int) -> None:
    on = FingerprintRunner(12, block_size, 8)
    found = launch(on, dataclasses.replace(WHOLE, table=(7, 4, 6, 1, 2)), block_size=block_size)
    assert pairs(found.cells) == DOCUMENTED_CELLS


def test_batch_mates_do_not_matter() -> None:
    others = [
        Row(Request(name, (5,) * length), 0, (5,) * length, table) for name, length, table in [("b", 1, (4,)), ("c", 4, (5, 6))]
    ]
    found = launch(runner(), others[0], WHOLE, others[1])
    assert found.row_ends == (1, 6, 10)
    assert pairs(found.cells[1:6]) == DOCUMENTED_CELLS
    assert found.result().tokens[1] == (4,)


def test_content_behind_the_rows_last_position_does_not_matter() -> None:
    on = runner()
    on.store[2 * BLOCK + 1] = 99  # the slot behind the last position of WHOLE
    on.store[7 * BLOCK :] = 98
    found = launch(on, dataclasses.replace(WHOLE, table=(3, 1, 2, 7)))
    assert pairs(found.cells) == DOCUMENTED_CELLS
    assert found.result().tokens == ((4,),)


# What does matter: each case reads or writes one thing wrongly, and the last token is computed on top of it

CONTEXT = Row(BASE, 0, PROMPT[:4], (3, 1), samples=False)
LAST = Row(BASE, 4, PROMPT[4:], (3, 1, 2))


def last_after(prepare: Callable[[FingerprintRunner], object], last: Row = LAST) -> FingerprintLaunch:
    on = runner()
    launch(on, CONTEXT)
    prepare(on)
    return launch(on, last)


def request_but(**changes: Any) -> Request:
    return dataclasses.replace(BASE, **changes)


def wrong_context(request: Request, tokens: tuple[int, ...] = PROMPT[:4]) -> Callable[[FingerprintRunner], object]:
    return lambda on: launch(on, Row(request, 0, tokens, (3, 1), samples=False))


def poke(slot: int, layer: int, value: int) -> Callable[[FingerprintRunner], object]:
    def change(on: FingerprintRunner) -> None:
        on.store[slot, layer] ^= np.uint64(value)

    return change


def fill(block: int) -> Callable[[FingerprintRunner], object]:
    empty = plan_of(Row(Request("z", (0,)), 0, (0,), (12,)))
    return lambda on: on.launch(empty[0], dataclasses.replace(empty[1], fills=(block,)))


WRONG: dict[str, tuple[Callable[[FingerprintRunner], object], Row]] = {
    "a wrong block": (lambda on: launch(on, Row(BASE, 0, (7, 7), (5,))), dataclasses.replace(LAST, table=(5, 1, 2))),
    "a block that nobody wrote": (lambda _: None, dataclasses.replace(LAST, table=(5, 1, 2))),
    "swapped blocks": (lambda _: None, dataclasses.replace(LAST, table=(1, 3, 2))),
    "one block twice": (lambda _: None, dataclasses.replace(LAST, table=(3, 3, 2))),
    "the padding block": (lambda _: None, dataclasses.replace(LAST, table=(3, 0, 2))),
    "a wrong position": (lambda _: None, dataclasses.replace(LAST, start=3, table=(3, 2))),
    "a wrong input token": (lambda _: None, dataclasses.replace(LAST, tokens=(1,))),
    "a wrong earlier token": (wrong_context(BASE, (1, 2, 2, 4)), LAST),
    "no adapter": (wrong_context(request_but(adapter=None)), LAST),
    "another adapter": (wrong_context(request_but(adapter=Adapter("arol", 2))), LAST),
    "another version of the adapter": (wrong_context(request_but(adapter=Adapter("lora", 3))), LAST),
    "other media": (wrong_context(request_but(media=(Media("sha256:dog", 1, 2),))), LAST),
    "media at another offset": (wrong_context(request_but(media=(Media("sha256:cat", 0, 3),))), LAST),
    "no media": (wrong_context(request_but(media=())), LAST),
    "a poisoned block": (fill(3), LAST),
    "one flipped bit in layer one": (poke(3 * BLOCK, 0, 1), LAST),
    "one flipped bit in layer two": (poke(1 * BLOCK + 1, 1, 1 << 63), LAST),
}


@pytest.mark.parametrize(("prepare", "last"), WRONG.values(), ids=WRONG)
def test_a_mistake_changes_the_cells_and_the_digest(prepare: Callable[[FingerprintRunner], object], last: Row) -> None:
    right, wrong = last_after(lambda _: None), last_after(prepare, last)
    assert pairs(right.cells) == DOCUMENTED_CELLS
    assert pairs(wrong.cells) != DOCUMENTED_CELLS
    assert digest_of(wrong.cells) != digest_of(right.cells)


def digest_of(cells: np.ndarray[Any, np.dtype[np.uint64]]) -> tuple[int, ...]:
    """Thirty-two tokens at as many choices stand for the digest: two digests agree on all of them once in 10^10 or so."""
    request = Request("d", (0,) * len(cells), SamplingParams(temperature=8.0, n=32))
    on = FingerprintRunner(64, 1, 32)
    on.store[1 : len(cells) + 1] = cells
    table = tuple(range(1, len(cells) + 1))
    tokens = []
    for choice in range(32):
        plan, reservation = plan_of(Row(request, len(cells) - 1, (0,), table, choice=choice), block_size=1)
        # The row writes where it does not read, so that it reads exactly `cells`.
        tokens.append(on.launch(plan, dataclasses.replace(reservation, slots=(0,))).result().tokens[0][0])
    return tuple(tokens)


def test_a_write_to_a_slot_outside_the_table_leaves_poison_in_the_cells() -> None:
    plan, reservation = plan_of(WHOLE)
    wrong = dataclasses.replace(reservation, slots=(*reservation.slots[:-1], 9 * BLOCK))
    cells = runner().launch(plan, wrong).cells
    assert pairs(cells)[:4] == DOCUMENTED_CELLS[:4]
    assert pairs(cells)[4] == (int(POISON), int(POISON))


# Fills, copies, devices


def test_everything_is_poison_before_the_first_step_and_padding_stays_so() -> None:
    on = runner()
    assert (on.store == POISON).all()
    assert on.store.shape == (13 * BLOCK, 2)
    launch(on, WHOLE)
    assert (on.store[:BLOCK] == POISON).all()
    assert {slot for slot in range(len(on.store)) if (on.store[slot] != POISON).any()} == set(WHOLE.slots(BLOCK))


def test_fills_come_before_copies_and_copies_before_rows() -> None:
    on = runner()
    launch(on, CONTEXT)
    plan, reservation = plan_of(Row(BASE, 3, PROMPT[3:], (3, 4, 2), choice=1))
    copied = dataclasses.replace(reservation, fills=(4, 2), copies=(BlockCopy(1, 4, 1),))
    before = on.store[1 * BLOCK : 2 * BLOCK].copy()
    assert pairs(on.launch(plan, copied).cells) == DOCUMENTED_CELLS
    assert (on.store[1 * BLOCK : 2 * BLOCK] == before).all()


def test_a_copy_takes_the_filled_part_and_leaves_the_rest_of_the_block() -> None:
    on = FingerprintRunner(12, 4, 8)
    on.store[1 * 4 : 2 * 4] = [[1, 2], [3, 4], [5, 6], [7, 8]]
    plan, reservation = plan_of(Row(Request("z", (0,)), 0, (0,), (12,)), block_size=4)
    on.launch(plan, dataclasses.replace(reservation, copies=(BlockCopy(1, 3, 2), BlockCopy(3, 5, 1))))
    poison = (int(POISON), int(POISON))
    assert pairs(on.store[3 * 4 : 4 * 4]) == [(1, 2), (3, 4), poison, poison]
    assert pairs(on.store[5 * 4 : 6 * 4]) == [(1, 2), poison, poison, poison]


def test_operations_declare_the_blocks_that_they_touch() -> None:
    device = HeldDevice()
    plan, reservation = plan_of(dataclasses.replace(LAST, table=(3, 1, 2, 7)))
    runner(device=device).launch(plan, dataclasses.replace(reservation, fills=(2, 5), copies=(BlockCopy(6, 2, 1),)))
    declared = {op.name: (sorted(op.reads), sorted(op.writes)) for op in device.ops}
    assert declared == {
        "fill": ([], [Page("kv", 2), Page("kv", 5)]),
        "copy": ([Page("kv", 6)], [Page("kv", 2)]),
        "rows": ([Page("kv", 1), Page("kv", 2), Page("kv", 3)], [Page("kv", 2)]),
    }


def test_a_held_device_runs_late_and_passes_no_fence_by_itself() -> None:
    device = HeldDevice()
    on = runner(device=device)
    first, second = launch(on, CONTEXT, plan_id=1), launch(on, LAST, plan_id=2)
    assert (on.store == POISON).all()
    assert second.result().tokens == ((4,),)
    assert not first.fence.has_passed()
    device.release_fences()
    assert first.fence.has_passed()
    assert second.fence.has_passed()


# Tokens in flight


def decode(start: int, *, is_pending: bool, tokens: tuple[int, ...] = (), epoch: int = 0, samples: bool = True) -> Row:
    return Row(BASE, start, tokens, (3, 1, 2, 4, 5, 6), samples, 0, epoch, is_pending)


@pytest.mark.parametrize("runs_late", [False, True], ids=["at once", "late"])
def test_a_token_in_flight_is_fed_on_the_device(runs_late: bool) -> None:
    known, fed = runner(), runner(device=HeldDevice(runs_late=runs_late))
    other = Row(Request("b", (5,) * 4), 0, (5,) * 4, (7, 8))
    sync = [launch(known, WHOLE, plan_id=1)]
    for step in (5, 6):
        sync.append(launch(known, other, decode(step, is_pending=False, tokens=sync[-1].result().tokens[-1]), plan_id=step))
    flying = [launch(fed, WHOLE, plan_id=1)]
    flying += [launch(fed, other, decode(step, is_pending=True), plan_id=step) for step in (5, 6)]
    assert [one.result().tokens for one in flying] == [one.result().tokens for one in sync]
    assert pairs(flying[-1].cells) == pairs(sync[-1].cells)


def test_each_row_is_fed_its_own_token_in_flight() -> None:
    """Two choices whose tokens differ, in another order than they were sampled, a chunk with known tokens between them."""
    request = dataclasses.replace(BASE, sampling=SamplingParams(temperature=1.0, seed=7, n=2))
    chunk = Row(Request("b", (5, 6, 7)), 0, (5, 6, 7), (7, 8), samples=False)

    def last(choice: int) -> Row:
        return Row(request, 4, PROMPT[4:], (3, 1, 4 + choice), choice=choice)

    def next_of(choice: int, tokens: tuple[int, ...]) -> Row:
        return Row(request, 5, tokens, (3, 1, 4 + choice), choice=choice, is_pending=not tokens)

    known, fed = runner(), runner(device=HeldDevice())
    for on in (known, fed):
        launch(on, dataclasses.replace(CONTEXT, request=request), plan_id=1)
    first = launch(known, last(0), last(1), plan_id=2).result().tokens
    assert first == ((3,), (4,))
    launch(fed, last(0), last(1), plan_id=2)
    expected = launch(known, next_of(1, first[1]), chunk, next_of(0, first[0]), plan_id=3)
    found = launch(fed, next_of(1, ()), chunk, next_of(0, ()), plan_id=3)
    assert pairs(found.cells) == pairs(expected.cells)
    assert found.result().tokens == expected.result().tokens


@pytest.mark.parametrize(
    ("later", "identity"),
    [(decode(5, is_pending=True, epoch=1), {}), (decode(5, is_pending=True), {"generation": 1})],
    ids=["of an older epoch", "of an older generation"],
)
def test_a_token_of_another_life_is_not_fed(later: Row, identity: dict[str, int]) -> None:
    on = runner()
    launch(on, WHOLE)
    with pytest.raises(RunnerError, match="in flight"):
        launch(on, later, plan_id=2, **identity).result()


def test_a_plan_launched_again_is_fed_what_the_lost_one_was_fed() -> None:
    on = runner()
    launch(on, WHOLE)
    lost = launch(on, decode(5, is_pending=True), plan_id=2)
    launch(on, decode(6, is_pending=True), plan_id=3)  # lost as well
    again = launch(on, decode(5, is_pending=True), plan_id=4)
    assert again.result().tokens == lost.result().tokens


def test_a_pending_token_survives_many_lost_launches_but_memory_is_bounded() -> None:
    on = runner()
    launch(on, WHOLE)
    for plan_id in range(2, 2000):
        launch(on, Row(Request(f"b{plan_id}", (5,)), 0, (5,), (9,)), plan_id=plan_id)
        if plan_id == 100:
            launch(on, decode(5, is_pending=True), plan_id=5000).result()
    assert len(on._sampled) <= 1100
    with pytest.raises(RunnerError, match="in flight"):
        launch(on, decode(5, is_pending=True), plan_id=5001).result()


# Errors


def plan_but(**changes: Any) -> tuple[Plan, Reservation]:
    plan, reservation = plan_of(WHOLE)
    return dataclasses.replace(plan, **changes), reservation


def reservation_but(**changes: Any) -> tuple[Plan, Reservation]:
    plan, reservation = plan_of(WHOLE)
    return plan, dataclasses.replace(reservation, **changes)


UNLAUNCHABLE = {
    "the reservation of another plan": reservation_but(plan_id=2),
    "a table too few": reservation_but(tables=()),
    "a table that is too short": reservation_but(tables=((3, 1),)),
    "a slot too few": reservation_but(slots=(6, 7, 2, 3)),
    "a slot outside the store": reservation_but(slots=(6, 7, 2, 3, 26)),
    "a block outside the store": reservation_but(tables=((3, 1, 13),)),
    "a negative block": reservation_but(tables=((3, 1, -1),)),
    "a fill outside the store": reservation_but(fills=(13,)),
    "a copy outside the store": reservation_but(copies=(BlockCopy(13, 1, 1),)),
    "a token too few": plan_but(token_ids=PROMPT[:4]),
    "a token outside the vocabulary": plan_but(token_ids=(*PROMPT[:4], 8)),
}


@pytest.mark.parametrize(("plan", "reservation"), UNLAUNCHABLE.values(), ids=UNLAUNCHABLE)
def test_what_can_not_be_launched_is_refused_and_touches_nothing(plan: Plan, reservation: Reservation) -> None:
    device = HeldDevice(runs_late=False)
    on = runner(device=device)
    with pytest.raises(RunnerError, match="plan 1"):
        on.launch(plan, reservation)
    assert device.ops == []


def test_a_plan_without_rows_gives_a_result_without_rows() -> None:
    result = launch(runner()).result()
    assert (result.rows, result.tokens) == ((), ())


class FullDevice(HeldDevice):
    def submit(self, op: DeviceOp) -> None:
        raise MemoryError(f"no room for {op.name}")


def test_a_device_that_takes_no_work_is_a_failed_launch() -> None:
    with pytest.raises(RunnerError, match=r"plan 1.*no room for rows"):
        launch(runner(device=FullDevice()), WHOLE)


def test_an_injected_failure_comes_out_where_it_was_ordered() -> None:
    on = FailingRunner(runner(), at_launch={1}, at_result={2})
    with pytest.raises(RunnerError, match="into its launch"):
        on.launch(*plan_of(CONTEXT, plan_id=1))
    lost = on.launch(*plan_of(CONTEXT, plan_id=2))
    with pytest.raises(RunnerError, match="into its result"):
        lost.result()
    assert on.launch(*plan_of(WHOLE, plan_id=3)).result().tokens == ((4,),)


BLOCK_IMPORTS = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"torch", "triton", "scipy", "hypothesis", "pytest", "properties"}:
            raise AssertionError(f"{name} was imported")
sys.meta_path.insert(0, Refuse())
import engine_under_test
from engine_under_test.execution.fingerprint import FingerprintRunner
FingerprintRunner(4, 2, 8)
try:
    import scipy
except AssertionError:
    print("the hook works")
"""


def test_the_fingerprint_runner_imports_neither_torch_nor_scipy() -> None:
    done = subprocess.run([sys.executable, "-c", BLOCK_IMPORTS], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout.strip()) == (0, "the hook works"), done.stderr
