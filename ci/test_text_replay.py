"""Claims about replays of streamed texts: a fault fails again and its story tells what readers saw, or it is gone."""

from __future__ import annotations

import pytest

from ci.replay import lines, replay
from ci.replay_file import ReplayFile, read_replay, replay_of, to_text
from differential.streamed_text import SUITE_ID, check_streamed_text
from engine_under_test import text
from engine_under_test.errors import BadInput
from properties.suite import Profile, SuiteContext
from properties.verdict import Verdict


def _keeps_nothing_back(_text: str, _stop: str) -> int:
    return 0


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> ReplayFile:
    """The counterexample that the suite would write, read back from disk."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(text, "_overlap", _keeps_nothing_back)
        (failure,) = check_streamed_text(SuiteContext(Profile.QUICK, 11)).failures
    path = tmp_path_factory.mktemp("replay") / "replay.json"
    path.write_text(to_text(replay_of(SUITE_ID, failure)))
    return read_replay(path)


def test_it_still_fails_as_long_as_the_fault_is_there(monkeypatch: pytest.MonkeyPatch, file: ReplayFile) -> None:
    monkeypatch.setattr(text, "_overlap", _keeps_nothing_back)
    found = replay(file)
    assert (found.verdict, found.closing) == (Verdict.INVALID, "still fails: SC-12 stopping")
    told = list(lines(found))
    assert told[0].startswith("1 operation on streamed texts (")
    assert [line.split()[1] for line in told[1:3]] == ["add", "drain"]
    assert any("1 token, shows" in line for line in told)
    assert any(line.strip().startswith("stop strings") for line in told)


def test_verbose_shows_tokens_what_is_shown_of_them_and_the_engine(monkeypatch: pytest.MonkeyPatch, file: ReplayFile) -> None:
    monkeypatch.setattr(text, "_overlap", _keeps_nothing_back)
    found = replay(file)
    more = [line.strip() for line in lines(found, is_verbose=True) if line not in set(lines(found))]
    assert any(line.startswith("| ") and ": of " in line and " shown '" in line for line in more)
    assert any(line.startswith("| free, next first: ") for line in more)


def test_without_the_fault_it_no_longer_fails(file: ReplayFile) -> None:
    found = replay(file)
    assert (found.verdict, found.closing) == (Verdict.VALID, "no longer fails: SC-12 stopping holds in every operation")


def test_a_world_that_is_none_is_one_sentence(file: ReplayFile) -> None:
    broken = ReplayFile(file.engine, file.check, file.seed, {"target": "text", "texts": {"a": {}}}, file.ops, file.violation)
    with pytest.raises(BadInput, match="this is no world of streamed texts"):
        replay(broken)
