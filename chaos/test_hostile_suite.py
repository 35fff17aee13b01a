"""The suite of hostile peers passes the store as it is, and finds one that lets anybody in."""

from __future__ import annotations

import hmac
import random

import pytest

from chaos.hostile_suite import check_hostile_peers
from chaos.spoiling_wire import Field, flipped
from engine_under_test.distributed.frames import FrameReader, FrameWriter
from engine_under_test.errors import ProtocolError
from properties.suite import Profile, SuiteContext
from properties.verdict import Verdict


def test_every_kind_comes_and_the_store_stands() -> None:
    found = check_hostile_peers(SuiteContext(Profile.QUICK, 5))
    assert (found.verdict, found.missed) == (Verdict.VALID, ())
    assert found.reached["slow loris behind the greeting"] == 1


def test_a_store_that_lets_anybody_in_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hmac, "compare_digest", lambda _due, _found: True)
    found = check_hostile_peers(SuiteContext(Profile.QUICK, 5))
    assert found.verdict is Verdict.INVALID
    (failure,) = found.failures
    assert failure.violation.sentence == (
        "wrong token: found welcomed, expected its connection ended: it has not proved that it has the token"
    )


@pytest.mark.parametrize("where", Field, ids=lambda field: f"a bit of its {field}")
def test_a_flipped_frame_is_refused_as_soon_as_it_is_whole(where: Field) -> None:
    chance = random.Random(3)
    for _ in range(50):
        frame = FrameWriter().frame(chance.randbytes(chance.randint(1, 500)))
        spoiled = flipped(frame, where, chance)
        assert sum((one ^ other).bit_count() for one, other in zip(frame, spoiled, strict=True)) == 1
        reader = FrameReader(1 << 20)
        reader.feed(spoiled)
        with pytest.raises(ProtocolError):
            reader.next_message()
