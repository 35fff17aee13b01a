"""Every strange file is refused as the engine is, and a loader that looks away is found."""

from __future__ import annotations

import pytest

from differential.made_models import _strange_apart
from differential.strange_files import STRANGE, Strange
from engine_under_test.model import safetensors_file


@pytest.mark.parametrize("strange", STRANGE, ids=lambda each: each.name)
def test_it_is_refused_in_a_sentence(strange: Strange) -> None:
    assert _strange_apart(strange, 3) is None


def test_a_loader_that_reads_what_it_knows_alone_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(safetensors_file, "_refuse_foreign_tensors", lambda *_: None)
    found = [each.name for each in STRANGE if not each.may_load and _strange_apart(each, 3) is not None]
    assert found == ["biases of attention, not said", "biases of the inner layer, not said"]
