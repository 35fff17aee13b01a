"""Claims about leaving out: what is needed stays, in its order; what one removal makes possible is seen; no try too many."""

from __future__ import annotations

import pytest

from properties.fewest import at_most, fewest


@pytest.mark.parametrize("needed", [(), (0,), (19,), (3, 4), (0, 7, 19)], ids=str)
def test_what_is_needed_stays_and_nothing_else(needed: tuple[int, ...]) -> None:
    assert fewest(range(20), lambda left: set(needed) <= set(left)) == needed


def test_what_could_only_go_after_another_goes_too() -> None:
    asked: list[tuple[str, ...]] = []

    def fails(left: tuple[str, ...]) -> bool:
        asked.append(left)
        return "x" in left and ("lid" in left or "pot" not in left)  # the lid stays as long as the pot is there

    assert fewest(("pot", "x", "lid"), fails) == ("x",)
    assert len(asked) < 12


def test_no_try_too_many() -> None:
    asked: list[tuple[int, ...]] = []

    def fails(left: tuple[int, ...]) -> bool:
        asked.append(left)
        return 5 in left

    assert 5 in fewest(range(50), fails, at_most(3))
    assert len(asked) == 3


def test_of_nothing_nothing_is_left_and_nothing_is_asked() -> None:
    assert fewest((), lambda _left: pytest.fail("asked")) == ()
