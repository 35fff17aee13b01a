"""Claims about worlds whose runner keeps its rows: what is kept is what is read, and what is kept wrongly is found (SC-13)."""

from __future__ import annotations

from itertools import islice

import pytest

from engine_under_test.errors import BadInput
from engine_under_test.execution.rows import KeptRows
from models.build import world_from
from models.machines.driving import Driver
from models.reach import Reach
from models.speculation_suite import SHAPES as SPECULATING
from models.walk import WalkShape, adapter_shape, small_shape, walk_ops
from properties.op import Op, OpKind

SHAPES = {
    "plain": small_shape(2, keeps_rows=True),
    "adapters": adapter_shape(1, keeps_rows=True),
    "drafts": SPECULATING["speculating-large"],
}


def walk(shape: WalkShape, **device: str) -> Driver:
    driver = Driver({**shape.spec(), **device})
    driver.run((*islice(walk_ops(3, shape), 160), Op(OpKind.DRAIN)))
    return driver


@pytest.mark.parametrize("label", SHAPES)
@pytest.mark.parametrize("device", ["plain", "streams"])
def test_every_step_is_compared_and_right(label: str, device: str) -> None:
    driver = walk(SHAPES[label], device=device)
    assert driver.violation is None
    assert driver.reached()[0][Reach.ROWS_KEPT.value] > 100


def test_rows_that_are_not_swapped_whole_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The prompt of a row stays where it was: nothing that is computed of it shows that at once."""
    right = KeptRows.swap

    def but_for_prompts(self: KeptRows, one: int, other: int) -> None:
        right(self, one, other)
        prompts = self._columns["prompt"]
        prompts[one], prompts[other] = prompts[other], prompts[one]

    monkeypatch.setattr(KeptRows, "swap", but_for_prompts)
    found = walk(SHAPES["plain"]).violation
    assert found is not None
    assert found.invariant == "SC-13"


def test_a_wrong_spec_is_refused() -> None:
    with pytest.raises(BadInput, match='rows are kept, "keeps_rows": true, or that is not named, found False'):
        world_from({"target": "assay", "config": {}, "keeps_rows": False})
