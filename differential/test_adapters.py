"""Adapters as files are what PEFT means by them, and the suite `adapters` sees what is wrong with them on the device."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from differential.adapted_suite import check_adapters, workload
from differential.adapted_world import VOCAB, model_of, weights_of_adapter
from engine_under_test.config import EngineConfig
from engine_under_test.engine import Engine
from engine_under_test.errors import BadInput
from engine_under_test.execution import adapter_slots
from engine_under_test.execution.adapter_slots import AdapterLibrary, AdapterSlots, RowAdapters
from engine_under_test.execution.transformer import TransformerRunner
from engine_under_test.model.lora import ADAPTER_CONFIG, ADAPTER_WEIGHTS, LoraWeights, load_lora, random_lora, save_lora
from engine_under_test.types import Adapter, FinishReason, Request, SamplingParams
from properties.suite import Profile, SuiteContext
from properties.verdict import Verdict

MODEL = model_of(5)
CONFIG = MODEL.config
LORA = random_lora(CONFIG, 1, rank=3, modules=("q", "down"))
QUICK = SuiteContext(Profile.QUICK, 0x1234, shrink_s=2.0)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_lora(LORA, tmp_path)
    return tmp_path


def test_what_is_saved_is_loaded_again(folder: Path) -> None:
    found = load_lora(folder, CONFIG)
    assert (found.rank, found.scale) == (LORA.rank, LORA.scale)
    for one, other in zip(found.layers, LORA.layers, strict=True):
        assert {name: [each.tolist() for each in factors] for name, factors in one.items()} == {
            name: [each.tolist() for each in factors] for name, factors in other.items()
        }


def test_a_stabilised_rank_divides_by_its_root(folder: Path) -> None:
    _change(folder, use_rslora=True)
    assert load_lora(folder, CONFIG).scale == pytest.approx(LORA.scale * LORA.rank**0.5)


def _change(folder: Path, **settings: Any) -> None:
    path = folder / ADAPTER_CONFIG
    path.write_text(json.dumps({**json.loads(path.read_text()), **settings}))


def _tensors(change: Callable[[dict[str, torch.Tensor]], object]) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        tensors = load_file(folder / ADAPTER_WEIGHTS)
        change(tensors)
        save_file(tensors, folder / ADAPTER_WEIGHTS)

    return apply


def _settings(**settings: Any) -> Callable[[Path], None]:
    return lambda folder: _change(folder, **settings)


_FIRST = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"
BAD: dict[str, tuple[Callable[[Path], object], str]] = {
    "no configuration": (lambda folder: (folder / ADAPTER_CONFIG).unlink(), "name the folder that PEFT saved"),
    "a configuration that is not JSON": (lambda folder: (folder / ADAPTER_CONFIG).write_text("{"), "must be JSON"),
    "no tensors": (lambda folder: (folder / ADAPTER_WEIGHTS).unlink(), "must be whole"),
    "half of the tensors": (
        lambda folder: (folder / ADAPTER_WEIGHTS).write_bytes((folder / ADAPTER_WEIGHTS).read_bytes()[:100]),
        "must be whole",
    ),
    "another kind": (_settings(peft_type="IA3"), "peft_type of an adapter must be 'LORA', found 'IA3'"),
    "DoRA": (_settings(use_dora=True), "use_dora of an adapter must be False, found True"),
    "a setting of a later version": (_settings(use_xlora=True), "use_xlora of an adapter is not known here"),
    "an adapter of other weights": (_settings(init_lora_weights="pissa"), "init_lora_weights of an adapter must be True"),
    "one that begins later": (_settings(alora_invocation_tokens=[1]), "alora_invocation_tokens of an adapter must be None"),
    "biases": (_settings(bias="all"), "bias of an adapter must be 'none'"),
    "ranks by module": (_settings(rank_pattern={"q_proj": 8}), "rank_pattern"),
    "no rank": (_settings(r=0), "r of an adapter must be an integer of at least 1, found 0"),
    "no alpha": (_settings(lora_alpha="much"), "lora_alpha of an adapter must be a finite number"),
    "another rank": (_settings(r=4), r"must be floats of shape \[4, \d+\] for this model and rank 4"),
    "targets without tensors": (_settings(target_modules=["q_proj", "k_proj", "down_proj"]), "those of its target_modules"),
    "a tensor that nothing reads": (_tensors(lambda t: t.update(other=torch.zeros(1))), "found 'other'"),
    "a layer too many": (
        _tensors(lambda t: t.update({_FIRST.replace("layers.0", "layers.2"): torch.zeros(3, 48)})),
        "in the model's 2 layers",
    ),
    "one factor": (_tensors(lambda t: t.pop(_FIRST)), "found only lora_B of q in layer 0"),
    "another model's": (_tensors(lambda t: t.update({_FIRST: torch.zeros(3, 64)})), "use an adapter that was made for this"),
    "integers": (_tensors(lambda t: t.update({_FIRST: torch.zeros(3, 48, dtype=torch.int32)})), "must be floats"),
    "a NaN": (_tensors(lambda t: t.update({_FIRST: torch.full((3, 48), torch.nan)})), "finite numbers"),
}


@pytest.mark.parametrize(("spoil", "told"), BAD.values(), ids=BAD.keys())
def test_a_bad_adapter_is_refused_in_one_sentence(folder: Path, spoil: Callable[[Path], object], told: str) -> None:
    spoil(folder)
    with pytest.raises(BadInput, match=told) as refused:
        load_lora(folder, CONFIG)
    assert "\n" not in str(refused.value)


def test_a_rank_above_the_stated_one_is_refused() -> None:
    with pytest.raises(BadInput, match="rank must be at most 2 here, found 3"):
        AdapterLibrary(CONFIG, 2).add(Adapter("a", 1), LORA)


def test_an_adapter_of_another_model_is_refused() -> None:
    other = replace(CONFIG, hidden_size=32)
    with pytest.raises(BadInput, match="the shapes of its model"):
        AdapterLibrary(CONFIG).add(Adapter("a", 1), random_lora(other, 1))


def test_rows_without_an_adapter_keep_every_bit_beside_rows_with_one() -> None:
    slots = AdapterSlots(MODEL, 2, 4)
    slots.load(2, weights_of_adapter(Adapter("a", 1), 5))
    x, w = torch.randn(9, 48, generator=torch.Generator().manual_seed(1)), MODEL.layers[0].k
    plain = torch.nn.functional.linear(x, w)
    found = RowAdapters(slots, (0, 2, 2, 0, 0, 2, 0, 0, 0)).whole(torch.nn.functional.linear)(x, w)
    changed = (found != plain).any(dim=1).tolist()
    assert changed == [False, True, True, False, False, True, False, False, False]


def test_a_slot_into_which_nothing_was_loaded_gives_no_number() -> None:
    found = RowAdapters(AdapterSlots(MODEL, 1, 4), (1,)).whole(torch.nn.functional.linear)(torch.ones(1, 48), MODEL.layers[0].q)
    assert found.isnan().all()


def test_a_request_whose_adapter_has_no_weights_ends_with_a_sentence_and_its_neighbour_goes_on() -> None:
    config = EngineConfig(num_blocks=32, block_size=4, vocab_size=VOCAB, adapters=(Adapter("a", 1),))
    engine = Engine(config, TransformerRunner(MODEL, 32, 4, adapters=AdapterLibrary(CONFIG)))
    engine.submit(Request("bad", (1, 2), SamplingParams(max_tokens=2), adapter=Adapter("a", 1)))
    engine.submit(Request("good", (1, 2), SamplingParams(max_tokens=2)))
    for _ in range(9):
        engine.step()
    ends = {each.request_id: (each.finish_reason, each.message) for each in engine.take_outputs() if each.finish_reason}
    assert ends["good"][0] is FinishReason.LENGTH
    assert ends["bad"][0] is FinishReason.ERROR
    assert "the weights of an adapter must be in the library before requests name it; not there: a version 1" in ends["bad"][1]


def test_the_story_reloads_a_name_in_use() -> None:
    adapters, ops = workload(3)
    assert Adapter("a", 1) in adapters
    assert any(op.request is not None and op.request.adapter == Adapter("a", 2) for op in ops)


def test_the_suite_passes_and_reaches_what_it_is_about() -> None:
    found = check_adapters(QUICK)
    assert (found.verdict, found.missed) == (Verdict.VALID, ())


def test_the_suite_sees_a_scale_that_one_module_forgets(monkeypatch: pytest.MonkeyPatch) -> None:
    right = AdapterSlots.added

    def forgets(self: AdapterSlots, slot: int, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor | None:
        added = right(self, slot, x, w)
        is_down = any(layer.down is w for layer in self._weights.layers)
        return added / self._scales[slot] if added is not None and is_down else added

    monkeypatch.setattr(adapter_slots.AdapterSlots, "added", forgets)
    found = check_adapters(QUICK)
    assert found.verdict is Verdict.INVALID
    assert found.failures[0].violation.invariant in {"SE-1", "SE-2", "SE-3"}


def test_the_suite_sees_weights_of_another_version(monkeypatch: pytest.MonkeyPatch) -> None:
    right = AdapterLibrary.find

    def first_version(self: AdapterLibrary, adapter: Adapter) -> LoraWeights | None:
        return right(self, Adapter(adapter.name, 1)) or right(self, adapter)

    monkeypatch.setattr(AdapterLibrary, "find", first_version)
    assert check_adapters(QUICK).verdict is Verdict.INVALID
