"""The free queue gives back exactly what was taken from it, from wherever it was taken."""

from hypothesis import given
from hypothesis import strategies as st

from engine_under_test.kv.block_pool import BlockPool


@given(st.integers(1, 12), st.data())
def test_relinking_in_reverse_order_restores_the_queue(num_blocks: int, data: st.DataObject) -> None:
    pool = BlockPool(num_blocks)
    for block in data.draw(st.permutations(range(1, num_blocks + 1))):
        pool.unlink(block)
        (pool.push_back if data.draw(st.booleans()) else pool.push_front)(block)
    before = pool.free_order()
    taken = data.draw(st.lists(st.sampled_from(before), unique=True))
    for block in taken:
        pool.unlink(block)
    assert pool.free_order() == tuple(block for block in before if block not in taken)
    for block in reversed(taken):
        pool.relink(block)
    assert pool.free_order() == before
    assert pool.num_free == num_blocks


def test_empty_blocks_are_taken_before_cached_ones_and_these_by_age() -> None:
    pool = BlockPool(3)
    for block in (1, 2, 3):
        pool.unlink(block)
    pool.push_back(2)
    pool.push_back(1)
    pool.push_front(3)
    assert pool.free_order() == (3, 2, 1)
    assert pool.first_free() == 3


def test_a_queue_bent_into_a_ring_is_still_read_in_finite_time() -> None:
    pool = BlockPool(2)
    pool._next[2] = 1
    assert len(pool.free_order()) == 3
