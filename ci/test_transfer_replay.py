"""A replay of transfers still fails as long as the bug is there, and says so when it is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from chaos.transfers import run_transfers
from ci.replay import lines, replay
from ci.replay_file import read_replay, replay_of, to_text
from engine_under_test.distributed.store_pool import StorePool
from engine_under_test.errors import BadInput
from properties.suite import Failure, Profile, SuiteContext
from properties.verdict import Verdict, Violation


def test_a_failure_of_the_suite_is_replayed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "DI-3.json"
    with monkeypatch.context() as planted:
        planted.setattr(StorePool, "pin", lambda *_: None)
        (failure,) = run_transfers(SuiteContext(Profile.QUICK, seed=3)).failures
        file.write_text(to_text(replay_of("transfers", failure)))
        replayed = replay(read_replay(file))
        assert replayed.verdict is Verdict.INVALID
        assert any("pins" in line for line in lines(replayed, is_verbose=True))
        assert replay(read_replay(file), until=0).violation is None
    assert replay(read_replay(file)).verdict is Verdict.VALID


def test_a_walk_that_is_none_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as planted:
        planted.setattr(StorePool, "pin", lambda *_: None)
        (failure,) = run_transfers(SuiteContext(Profile.QUICK, seed=3)).failures
    text = to_text(replay_of("transfers", failure))
    for wrong, sentence in (('"walk"', "has a walk of"), ('"begin to load"', "a walk knows")):
        file = tmp_path / "wrong.json"
        file.write_text(text.replace(wrong, '"something"'))
        with pytest.raises(BadInput, match=sentence):
            replay(read_replay(file))


@pytest.mark.parametrize(
    ("walk", "invariant", "said"),
    [
        ([], "DI-3", "the file holds no operation"),
        ([["abort", 0, 0], ["relieve", 0, 0]], "DI-3", "2 of 2 operations no longer apply"),
        ([["begin", 0, 3], ["go on", 3, 0]], "KV-1", "KV-1 is not judged in walks of transfers"),
    ],
    ids=["an empty walk", "nothing but what does not apply", "an invariant that is judged elsewhere"],
)
def test_what_did_not_run_proves_nothing(tmp_path: Path, walk: list[object], invariant: str, said: str) -> None:
    file = tmp_path / "walk.json"
    broken = Violation(invariant, "a name", "a", "b", "c")
    file.write_text(to_text(replay_of("transfers", Failure(broken, "0x1", {"target": "transfers", "walk": walk}))))
    replayed = replay(read_replay(file))
    assert replayed.verdict is Verdict.UNKNOWN
    assert replayed.closing.startswith(said)


def test_a_part_of_a_walk_is_counted(tmp_path: Path) -> None:
    file = tmp_path / "walk.json"
    walk = [["begin", 0, 3], ["go on", 3, 0], ["forget", 0, 0]]
    broken = Violation("DI-3", "a name", "a", "b", "c")
    file.write_text(to_text(replay_of("transfers", Failure(broken, "0x1", {"target": "transfers", "walk": walk}))))
    assert replay(read_replay(file), until=2).closing == "nothing broke in the first 2 operations"
    assert replay(read_replay(file)).verdict is Verdict.VALID
