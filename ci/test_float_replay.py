"""Claims about replays of a language model's workload: a fault fails again and both oracles tell of it, or it is gone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ci.cli import main
from ci.replay import Replayed, lines, replay, to_json
from ci.replay_file import ReplayFile, read_replay, replay_of, to_text
from differential.doubles import angles_late_from
from differential.float_settings import TRIALS, models, requests
from differential.judging import Judge
from differential.setting import Setting, World, world_to
from differential.shrinking import ops_of
from differential.trials import Tally
from engine_under_test.errors import BadInput
from engine_under_test.model import llama
from properties.suite import Failure, Profile
from properties.verdict import Verdict, Violation

MODEL = next(models(Profile.QUICK, 11))
CHUNKED = TRIALS[13](MODEL)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> ReplayFile:
    """The counterexample that a suite would write, read back from disk."""
    tally = Tally("float-settings", 11, shrink_s=120.0)  # the time of a clock: others may be at work too
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(llama, "angles", angles_late_from(8))
        tally.go_through(Judge(MODEL, asks_second_oracle=False), [CHUNKED], requests(11))
    path = tmp_path_factory.mktemp("replay") / "replay.json"
    path.write_text(to_text(replay_of("float-settings", tally.failures[0])))
    return read_replay(path)


@pytest.fixture(scope="module")
def failing(file: ReplayFile) -> Replayed:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(llama, "angles", angles_late_from(8))
        return replay(file)


def test_it_still_fails_as_long_as_the_fault_is_there(failing: Replayed) -> None:
    assert failing.verdict is Verdict.INVALID
    assert failing.closing.startswith("still fails: S")


def test_the_story_tells_requests_setting_plans_place_and_what_every_party_sees(failing: Replayed) -> None:
    told = list(lines(failing))
    assert told[0].startswith(f"1 request on {MODEL.words} · ")
    assert told[1].split()[:3] == ["1", "add", "r1"]
    assert any(line.split()[1:3] == ["plan", "1"] for line in told)
    text = "\n".join(told)
    assert "(position 9)" in text
    for party in ("engine", "reference", "transformers"):
        assert sum(line.strip().startswith(party) and line.count("token") == 2 for line in told) == 1


def test_verbose_shows_inputs_and_the_logits_of_all_parties_beside_each_other(failing: Replayed) -> None:
    more = [line.strip() for line in lines(failing, is_verbose=True) if line not in set(lines(failing))]
    assert any(": tokens " in line and "at positions 0.." in line for line in more)
    assert sum(line.endswith("(position 9), diverges") for line in more) == 1
    (head, *_) = (line for line in more if line.startswith("|   logit of"))
    assert head.split()[3:] == ["engine", "reference", "transformers"]
    table = [line.split() for line in more if line.startswith("|   token ")]
    emitted = [row for row in table if row[-1] == "emitted"]
    assert emitted
    assert len(table) >= 3 * len(emitted)
    (_bar, _word, _token, ours, own, others, _emitted) = emitted[-1]
    assert abs(float(own) - float(others)) < 1e-3 < abs(float(ours) - float(own))


def test_it_is_told_to_programs_too(failing: Replayed) -> None:
    data = json.loads(json.dumps(to_json(failing)))
    assert data["verdict"] == "invalid"
    assert data["timeline"][-1]["violation"].startswith(failing.file.violation.invariant)


def test_without_the_fault_it_no_longer_fails(file: ReplayFile) -> None:
    found = replay(file)
    assert (found.verdict, found.closing[:15]) == (Verdict.VALID, "no longer fails")


def test_a_part_of_the_requests_can_be_run_alone() -> None:
    world = world_to(World(MODEL, CHUNKED.world.config, Setting("plain")))
    whole = replay_of("a", Failure(Violation("SE-1", "", "", "", ""), "7", world, ops_of(requests(11))))
    found = replay(whole, until=2)
    assert (found.verdict, found.closing) == (Verdict.VALID, "nothing broke in the first 2 operations")
    assert sum(scene.title.startswith("add ") for scene in found.scenes) == 2


def test_a_model_that_is_not_there_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], file: ReplayFile
) -> None:
    monkeypatch.setenv("ASSAY_CACHE", str(tmp_path))
    path = tmp_path / "replay.json"
    path.write_text(json.dumps(json.loads(to_text(file)) | {"world": {**file.world, "model": {"name": "smollm2", "seed": 3}}}))
    with pytest.raises(SystemExit) as ended:
        main(["replay", str(path)])
    assert ended.value.code == 64
    assert "say assay model fetch" in capsys.readouterr().err


def test_a_world_of_neither_kind_is_one_sentence(file: ReplayFile) -> None:
    with pytest.raises(BadInput, match="this is no world of a language model"):
        replay(ReplayFile(file.engine, "a", "7", {"target": "transformer"}, file.ops, file.violation))
