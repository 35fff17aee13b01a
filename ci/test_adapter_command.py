"""`assay model adapter` writes a whole adapter or nothing, and says why in one sentence."""

from __future__ import annotations

from pathlib import Path

import pytest
from safetensors import SafetensorError

from ci import cli
from engine_under_test.model import safetensors_file


def test_a_full_disk_is_told_and_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def save_file(_tensors: object, file: Path, _metadata: object) -> None:
        file.write_bytes(b"half of it")
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    monkeypatch.setattr(safetensors_file, "save_file", save_file)
    folder = tmp_path / "new" / "newer" / "adapter"
    with pytest.raises(SystemExit) as caught:
        cli.main(["model", "adapter", str(folder), "--model", "tiny"])
    assert caught.value.code == 64
    sentence = f"assay: {folder} must be writable, but is not: No space left on device; name another folder\n"
    assert capsys.readouterr().err == sentence
    assert list(tmp_path.iterdir()) == []


def test_a_folder_without_a_name_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(["model", "adapter", "", "--model", "tiny"])
    assert caught.value.code == 64
    assert "found no name; say for example assay model adapter my-adapter" in capsys.readouterr().err
