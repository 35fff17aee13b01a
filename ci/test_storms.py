"""`assay chaos` tells its storms, ends by what they came to, and leaves a replay file of the first that breaks something."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from rich.console import Console

from chaos.faults import FaultKind
from ci import storms
from ci.cli import assay
from ci.replay import replay
from ci.replay_file import read_replay
from engine_under_test.errors import BadInput
from engine_under_test.execution.simulated_device import SimulatedDevice, SimulatedFence
from engine_under_test.seams import DeviceOp, Stream
from properties.verdict import Verdict


@pytest.fixture
def without_waits(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    submit = SimulatedDevice.submit_to

    def submit_to(
        self: SimulatedDevice, stream: Stream, op: DeviceOp, after: tuple[SimulatedFence, ...] = ()
    ) -> SimulatedFence:
        return submit(self, stream, op, () if stream is Stream.COMPUTE else after)

    monkeypatch.setattr(SimulatedDevice, "submit_to", submit_to)
    return monkeypatch


def test_storms_end_valid_and_say_their_seeds() -> None:
    done = CliRunner().invoke(assay, ["chaos", "--seed", "0x5", "--storms", "2", "--faults", "aborts,lost-plans"])
    assert done.exit_code == 0
    first, second, closing = done.stdout.splitlines()
    assert first.startswith("valid")
    assert "#0x5: " in first
    assert "#0x6: " in second
    assert closing.startswith("VALID  2 storms")
    assert "restarts" not in done.stdout


def test_their_result_can_be_had_as_json() -> None:
    done = CliRunner().invoke(assay, ["chaos", "--seed", "5", "--storms", "1", "--json"])
    data = json.loads(done.stdout)
    assert (data["verdict"], data["storms"], data["replay"]) == ("valid", 1, None)
    assert data["device_operations"] > 100


def test_what_breaks_is_left_as_a_replay_file(without_waits: pytest.MonkeyPatch, tmp_path: Path) -> None:
    without_waits.setattr(storms, "_FOLDER", tmp_path)
    outcome = storms.run_many(0, tuple(FaultKind), None, 3, Console(quiet=True))
    assert outcome.verdict is Verdict.INVALID
    (path,) = tmp_path.iterdir()
    assert path.name in outcome.file
    replayed = replay(read_replay(path))
    assert replayed.verdict is Verdict.INVALID
    assert replayed.violation is not None
    assert "missing: " in replayed.violation.facts[0]
    without_waits.undo()
    assert replay(read_replay(path)).verdict is Verdict.VALID, "repaired, it no longer fails"


@pytest.mark.parametrize("text", ["abort", "", "none,aborts"])
def test_a_kind_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(BadInput, match="--faults takes"):
        storms.kinds_of(text)


def test_time_and_number_together_are_refused() -> None:
    done = CliRunner().invoke(assay, ["chaos", "--storms", "1", "--budget", "1m"], standalone_mode=False)
    assert isinstance(done.exception, BadInput)


def test_a_fault_that_another_engine_has_no_verb_for_is_refused() -> None:
    assert storms.kinds_of("aborts", "transformers") == (FaultKind.ABORTS,)
    with pytest.raises(BadInput, match=r"transformers knows the faults .* only, found lost-plans"):
        storms.kinds_of("lost-plans", "transformers")
