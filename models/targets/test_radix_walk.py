"""The portable walk drives the radix target like any other: the correct one passes, and bugs planted in it are found."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice

import pytest

from models.build import config_from, hasher_of
from models.targets.planted import FreedAtAbortAndAgain, HitPathNotLocked, PublishedAtLaunch
from models.targets.radix import RadixTarget
from models.walk import WalkShape, radix_shape, walk_ops
from models.world import World

# With aborts of rows in flight, tenants, salts and media: all that the target knows.
SHAPE: WalkShape = replace(radix_shape(), fault_rate=0.1, namespace_share=0.25, media_share=0.1)


def _walked(target_type: type[RadixTarget], seed: int, num_ops: int, shape: WalkShape = SHAPE) -> World:
    spec = shape.spec()
    world = World(target_type(config_from(spec["config"]), hasher_of(spec)), hasher=hasher_of(spec))
    world.run(islice(walk_ops(seed, shape), num_ops))
    return world


@pytest.mark.parametrize("seed", range(5))
def test_the_radix_target_passes_the_portable_walk(seed: int) -> None:
    world = _walked(RadixTarget, seed, 800)
    assert world.violation is None
    assert world.checked_steps > 400
    assert world.noops < world.ops / 5
    assert {"KV-1", "KV-4", "KV-6", "KV-7", "KV-8", "KV-9", "SC-3", "SE-1"} <= world.evaluations.keys()
    assert "KV-2" not in world.evaluations  # counts of path locks are not observable per block


@pytest.mark.parametrize("hasher", ["two_bit", "constant"])
def test_the_radix_target_passes_the_portable_walk_with_a_poor_hash(hasher: str) -> None:
    world = _walked(RadixTarget, 0, 400, replace(SHAPE, hasher=hasher))
    assert world.violation is None


@pytest.mark.parametrize(
    ("target_type", "found_by"),
    [
        (HitPathNotLocked, {"KV-4", "KV-7"}),
        (PublishedAtLaunch, {"KV-3"}),
        (FreedAtAbortAndAgain, {"KV-4"}),
    ],
    ids=["a hit path that is not locked", "a page published at launch", "pages freed at abort and again"],
)
@pytest.mark.parametrize("seed", range(3))
def test_the_portable_walk_finds(target_type: type[RadixTarget], found_by: set[str], seed: int) -> None:
    # The third needs an abort of a row in flight: after 800 operations in the mean at this rate, measured over six seeds.
    world = _walked(target_type, seed, 8000, replace(SHAPE, abort_rate=0.15))
    assert world.violation is not None
    assert world.violation.invariant in found_by
