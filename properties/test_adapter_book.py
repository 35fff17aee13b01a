"""Adapters may be named, are loaded into slots and kept as docs/adapters.md says."""

from __future__ import annotations

from typing import Any

import pytest

from engine_under_test.adapter_book import AdapterBook
from engine_under_test.config import EngineConfig
from engine_under_test.engine import Engine
from engine_under_test.errors import BadInput
from engine_under_test.execution.fingerprint import FingerprintRunner
from engine_under_test.types import Adapter, AdapterLoad, RefusalReason, Request, Reservation, SamplingParams

ONE, TWO, OTHER = Adapter("fr", 1), Adapter("fr", 2), Adapter("de", 1)


def reservation(plan_id: int) -> Reservation:
    return Reservation(plan_id, (), (), ())


def engine_of(**config: Any) -> Engine:
    settings = EngineConfig(num_blocks=16, block_size=4, vocab_size=32, adapters=(ONE, OTHER), **config)
    return Engine(settings, FingerprintRunner(16, 4, 32, num_adapter_slots=settings.max_active_adapters))


def asks(name: str, adapter: Adapter | None, max_tokens: int = 2) -> Request:
    return Request(name, (1, 2, 3), SamplingParams(max_tokens=max_tokens), adapter=adapter)


def served(engine: Engine) -> dict[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {}
    while engine.has_work:
        engine.step()
    for output in engine.take_outputs():
        found[output.request_id] = found.get(output.request_id, ()) + output.token_ids
    return found


def test_a_row_without_an_adapter_has_slot_0_and_an_adapter_is_loaded_once() -> None:
    book = AdapterBook((ONE, OTHER), 2)
    first = book.assign(reservation(1), [ONE, None, ONE], {ONE})
    assert (first.adapter_slots, first.adapter_loads) == ((1, 0, 1), (AdapterLoad(1, ONE),))
    second = book.assign(reservation(2), [OTHER, ONE], {ONE, OTHER})
    assert (second.adapter_slots, second.adapter_loads) == ((2, 1), (AdapterLoad(2, OTHER),))
    assert book.slots == (ONE, OTHER)


def test_the_least_recently_used_slot_that_nobody_needs_is_taken() -> None:
    book = AdapterBook((ONE, TWO, OTHER), 2)
    book.assign(reservation(1), [ONE], {ONE})
    book.assign(reservation(2), [OTHER], {OTHER})
    book.assign(reservation(3), [ONE], {ONE})
    book.settle((), None)
    assert book.assign(reservation(4), [TWO], {TWO}).adapter_loads == (AdapterLoad(2, TWO),), "OTHER was used before ONE"
    book.settle((), None)
    assert book.assign(reservation(5), [OTHER], {OTHER, ONE}).adapter_loads == (AdapterLoad(2, OTHER),), "ONE runs"


def test_a_version_that_was_replaced_and_that_nobody_uses_leaves_its_slot() -> None:
    book = AdapterBook((ONE, OTHER), 2)
    book.assign(reservation(1), [OTHER], {OTHER})
    book.assign(reservation(2), [ONE], {ONE})
    book.settle((), None)
    book.load(TWO)
    assert book.slots == (OTHER, None)
    assert book.assign(reservation(3), [TWO], {TWO}).adapter_loads == (AdapterLoad(2, TWO),)


def test_a_slot_is_pinned_until_the_last_plan_that_names_it_has_settled() -> None:
    book = AdapterBook((ONE, OTHER), 1)
    for plan_id in (1, 2):
        book.assign(reservation(plan_id), [ONE], {ONE})
    assert list(book.in_flight) == [ONE]
    book.settle((2,), None)
    assert list(book.in_flight) == [ONE]
    book.settle((), None)
    assert list(book.in_flight) == []


def test_a_rollback_restores_what_lay_in_the_slot() -> None:
    book = AdapterBook((ONE, OTHER), 1)
    book.assign(reservation(1), [ONE], {ONE})
    book.settle((), None)
    book.assign(reservation(2), [OTHER], {OTHER})
    book.rolled_back(2)
    assert (book.slots, list(book.in_flight)) == ((ONE,), [])


def test_a_slot_whose_load_was_lost_holds_nothing_and_stays_pinned() -> None:
    book = AdapterBook((ONE, OTHER), 1)
    book.abandoned([book.assign(reservation(1), [ONE], {ONE})])
    assert (book.slots, book.num_slots) == ((None,), 0)
    book.settle((), None)
    assert book.num_slots == 1


def test_a_new_version_takes_the_name_and_the_old_one_goes_with_its_last_request() -> None:
    engine = engine_of()
    assert engine.submit(asks("old", ONE)).is_accepted
    engine.load_adapter(TWO)
    refused = engine.submit(asks("late", ONE))
    assert refused.refusal is RefusalReason.UNKNOWN_ADAPTER
    assert refused.message == (
        "an adapter must be loaded, in the version that is named, found 'fr' version 1, loaded: de version 1, fr version 2; "
        "load it or name another"
    )
    assert engine.submit(asks("new", TWO)).is_accepted
    assert engine.adapters == (OTHER, TWO, ONE)
    tokens = served(engine)
    assert tokens["old"] != tokens["new"]
    assert ONE not in engine.adapters


def test_unloading_waits_for_those_who_run() -> None:
    engine = engine_of()
    engine.submit(asks("a", ONE))
    engine.step()
    engine.unload_adapter(ONE)
    assert ONE in engine.adapters
    alone = engine_of()
    alone.submit(asks("a", ONE))
    assert served(engine) == served(alone)
    assert ONE not in engine.adapters


BAD_LOADS = {
    "a version that was there": (ONE, "must be higher than every earlier one of its name, found fr version 1 behind version 1"),
    "an older version": (Adapter("fr", 0), "load it as version 2"),
    "a version that is no integer": (Adapter("fr", 1.5), "an integer of 64 bits"),  # type: ignore[arg-type]  # wrong types are the point
    "a version of more than 64 bits": (Adapter("fr", 2**63), "an integer of 64 bits"),
}


@pytest.mark.parametrize(("adapter", "told"), BAD_LOADS.values(), ids=BAD_LOADS.keys())
def test_a_bad_load_is_refused_in_one_sentence(adapter: Adapter, told: str) -> None:
    engine = engine_of()
    with pytest.raises(BadInput, match=told) as refused:
        engine.load_adapter(adapter)
    assert "\n" not in str(refused.value)
    assert engine.adapters == (ONE, OTHER)


def test_a_version_never_comes_back() -> None:
    engine = engine_of()
    engine.unload_adapter(ONE)
    with pytest.raises(BadInput, match="load it as version 2"):
        engine.load_adapter(ONE)


def test_only_what_is_loaded_can_be_unloaded() -> None:
    with pytest.raises(
        BadInput, match="only an adapter that is loaded can be unloaded, found 'fr' version 2, loaded: fr version 1"
    ):
        engine_of().unload_adapter(TWO)


def test_a_hot_adapter_keeps_a_cold_one_waiting_for_the_stated_number_of_overtakes() -> None:
    engine = engine_of(max_active_adapters=1, max_adapter_overtakes=2, max_num_seqs=2, max_tokens_per_step=8)
    engine.submit(asks("hot", ONE, max_tokens=12))
    engine.step()
    engine.submit(asks("cold", OTHER, max_tokens=1))
    began: list[str] = []
    for number in range(6):
        engine.submit(asks(f"hot{number}", ONE, max_tokens=1))
    while engine.has_work:
        engine.step()
        began += [output.request_id for output in engine.take_outputs() if output.index == 0 and output.token_ids]
    assert began.index("cold") == 3, began


def test_requests_without_an_adapter_need_no_slot() -> None:
    engine = engine_of(max_active_adapters=1, max_adapter_overtakes=5)
    engine.submit(asks("hot", ONE, max_tokens=6))
    engine.submit(asks("cold", OTHER, max_tokens=1))
    engine.submit(asks("plain", None, max_tokens=1))
    engine.step()
    assert [output.request_id for output in engine.take_outputs()] == ["hot", "plain"]
