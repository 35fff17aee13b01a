"""The walk: the same story in every process, mostly of ops that apply, and sound on the targets that we have."""

from __future__ import annotations

import subprocess
import sys
from itertools import islice

import pytest

from models.build import world_from
from models.walk import WalkShape, large_shape, priority_shape, radix_shape, small_shape, walk_ops
from properties.op import Op

SHAPES = {
    "small, depth 0": small_shape(),
    "small, depth 2": small_shape(2),
    "small, two-bit hash": small_shape(1, hasher="two_bit"),
    "priority": priority_shape(),
    "large, depth 1": large_shape(1),
    "radix": radix_shape(),
}
_PRINT_DIGEST = """
from itertools import islice
from models.build import world_from
from models.walk import small_shape, walk_ops
from models.walk_suite import digest
shape = small_shape(1)
world = world_from(shape.spec())
world.run(islice(walk_ops(11, shape), 150))
print(digest(world.history), world.ops)
"""


@pytest.mark.parametrize("name", SHAPES)
def test_a_walk_is_sound_and_mostly_applies(name: str) -> None:
    shape: WalkShape = SHAPES[name]
    world = world_from(shape.spec())
    world.run(islice(walk_ops(5, shape), 250))
    assert world.violation is None, world.violation
    assert world.noops < world.ops / 2
    assert world.checked_steps > 50


def test_a_walk_is_a_function_of_its_seed() -> None:
    shape = small_shape(1)
    one, again, other = (tuple(islice(walk_ops(seed, shape), 300)) for seed in (3, 3, 4))
    assert [str(op.to_json()) for op in one] == [str(op.to_json()) for op in again]
    assert one != other


def test_ops_of_a_walk_survive_json() -> None:
    for op in islice(walk_ops(3, small_shape(1)), 300):
        assert str(Op.from_json(op.to_json())) == str(op)  # as text: NaN is not itself


def test_a_walk_is_the_same_under_another_hash_seed() -> None:
    seen = {
        subprocess.run(
            [sys.executable, "-c", _PRINT_DIGEST],
            env={"PYTHONHASHSEED": hash_seed, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("1", "2")
    }
    assert len(seen) == 1
