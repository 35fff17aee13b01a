"""A replay of adapters still fails as long as the bug is there, and says so when it is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from ci.replay import lines, replay
from ci.replay_file import read_replay, replay_of, to_text
from differential.adapted_suite import SUITE_ID, check_adapters
from engine_under_test.errors import BadInput
from engine_under_test.execution.adapter_slots import AdapterSlots
from engine_under_test.model.lora import LoraWeights
from properties.suite import Profile, SuiteContext
from properties.verdict import Verdict

RIGHT = AdapterSlots.load


def loads_without_the_scale(slots: AdapterSlots, slot: int, lora: LoraWeights) -> None:
    RIGHT(slots, slot, lora)
    slots._scales[slot] = 1.0


def test_a_failure_of_the_suite_is_replayed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "SE-1.json"
    with monkeypatch.context() as planted:
        planted.setattr(AdapterSlots, "load", loads_without_the_scale)
        (failure,) = check_adapters(SuiteContext(Profile.QUICK, seed=3, shrink_s=1.0)).failures
        assert len(failure.ops) < failure.ops_found
        path.write_text(to_text(replay_of(SUITE_ID, failure)))
        replayed = replay(read_replay(path))
        assert replayed.verdict is Verdict.INVALID
        assert any(": tokens " in line for line in lines(replayed))
    assert replay(read_replay(path)).verdict is Verdict.VALID
    path.write_text(path.read_text().replace('"config": ', '"konfig": '))
    with pytest.raises(BadInput, match="has a config, a seed and a setting"):
        replay(read_replay(path))
