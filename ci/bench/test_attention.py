"""Claims about the bench of attention: unknown without a device, a floor that can be missed, and a load that is right."""

from __future__ import annotations

import io

import pytest
import torch
from rich.console import Console

from ci.bench.attention import LOADS, SHARE_FLOOR, Load, lines_of, prepared
from ci.bench.bench import Measured, run_bench
from engine_under_test.execution.kernels import decode
from properties.verdict import Verdict

TINY = Load(rows=3, length=37, heads=4, kv_heads=2, head=64)


def test_without_a_cuda_device_the_answer_is_unknown_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    screen = io.StringIO()
    measured = run_bench("attention", Console(file=screen, width=200))
    assert measured.verdict is Verdict.UNKNOWN
    assert screen.getvalue().splitlines()[-1] == "UNKNOWN attention: no CUDA device; run it on a machine that has one"
    data = measured.to_json()
    assert (data["verdict"], data["figures"]) == ("unknown", [])
    assert data["reason"] == "no CUDA device; run it on a machine that has one"


@pytest.mark.parametrize(
    ("share", "verdict"),
    [
        pytest.param(0.71, Verdict.VALID, id="above the floor"),
        pytest.param(0.69, Verdict.INVALID, id="below the floor"),
    ],
)
def test_attention_is_judged_by_its_share_of_the_copies(share: float, verdict: Verdict) -> None:
    lines = lines_of([4e12, 4.2e12, 9e12], {LOADS[0]: [share * 4.2e12] * 3})
    assert [line.at_least for line in lines] == [None, None, SHARE_FLOOR]
    assert lines[2].figure.value == pytest.approx(share)
    assert Measured("attention", tuple(lines), slowness=2.0).verdict is verdict


def test_what_is_read_is_every_key_and_value_once() -> None:
    assert TINY.bytes_read == 2 * 2 * (3 * 37) * 2 * 64


def test_a_load_computes_attention_and_notices_if_it_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    attend, check = prepared(TINY, "cpu")
    assert attend().shape == (3, 4, 64)
    check()
    monkeypatch.setattr(decode, "LOG2_E", 1.0)
    with pytest.raises(AssertionError, match="attention must be right to be timed"):
        check()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device; say on one: pytest -m gpu ci/bench")
def test_attention_of_decodes_reaches_its_share_of_the_copies() -> None:
    assert run_bench("attention", Console()).verdict is Verdict.VALID
