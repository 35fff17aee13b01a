"""`assay kv-store` answers what can not work with one sentence and exit code 64."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ci.kv_store_command import parse_address, read_token
from engine_under_test.distributed.store_session import StoreLimits
from engine_under_test.errors import BadInput, ConfigError


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        pytest.param(["--listen", "7070"], "--listen takes HOST:PORT", id="no host"),
        pytest.param(["--listen", "127.0.0.1:70700"], "a port of 0 to 65535", id="no such port"),
        pytest.param(["--listen", "0.0.0.0:0"], "without a shared token the store listens on loopback only", id="no token"),
        pytest.param(["--token-file", "/nowhere"], "--token-file names a readable file", id="no such file"),
        pytest.param(["--capacity-mib", "99999999999"], "at most, the memory of this machine, found", id="more than there is"),
        pytest.param(["--lease", "0"], "--lease must be more than 0 seconds", id="no lease"),
        pytest.param(["--lease", "nan"], "more than 0 seconds and 86400 at most, found nan", id="a lease that is no number"),
        pytest.param(["--lease", "1e300"], "more than 0 seconds and 86400 at most", id="a lease without end"),
        pytest.param(["--listen", "[::1"], "an IPv6 host in brackets, as [::1]:7070, found '[::1'", id="half of the brackets"),
        pytest.param(["--listen", "::1:7070"], "an IPv6 host in brackets", id="no brackets"),
        pytest.param(["--until-eof"], "the store needs a pipe or a terminal there", id="nothing that could end"),
        pytest.param(["--listen", "192.0.2.1:7070", "--token-file", "TOKEN"], "can not listen on 192.0.2.1", id="not ours"),
    ],
)
def test_what_can_not_work_gets_a_sentence(flags: list[str], sentence: str, tmp_path: Path) -> None:
    (tmp_path / "TOKEN").write_text("a token of enough bytes\n")
    flags = [str(tmp_path / flag) if flag == "TOKEN" else flag for flag in flags]
    environment = {name: value for name, value in os.environ.items() if name != "ASSAY_KV_TOKEN"}
    found = subprocess.run(
        [sys.executable, "-m", "ci", "kv-store", *flags],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env=environment,
        check=False,
        timeout=60,
    )
    assert found.returncode == 64, found.stderr
    assert sentence in found.stderr
    assert "Traceback" not in found.stderr
    assert found.stdout == ""


def test_addresses_and_tokens_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert parse_address("[::1]:7070") == ("::1", 7070)
    assert parse_address("localhost:0") == ("localhost", 0)
    file = tmp_path / "token"
    file.write_text("secret of the file\n")
    monkeypatch.setenv("ASSAY_KV_TOKEN", "secret of the environment")
    assert read_token(file) == b"secret of the file"
    assert read_token(None) == b"secret of the environment"
    file.write_text(" \n")
    with pytest.raises(BadInput, match="is empty"):
        read_token(file)


@pytest.mark.parametrize("seconds", [float("nan"), float("inf"), 0.0, -1.0, 1e300])
def test_a_lease_has_a_sense_whoever_gives_it(seconds: float) -> None:
    with pytest.raises(ConfigError, match="lease_s must be more than 0"):
        StoreLimits(lease_s=seconds)
    with pytest.raises(ConfigError, match="abort_grace_s must be more than 0"):
        StoreLimits(abort_grace_s=seconds)
