"""Claims about files that are whole or absent."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from ci.atomic import CannotWrite, probe, write_all, write_text
from engine_under_test.errors import BadInput


def test_a_file_is_put_in_place_whole(tmp_path: Path) -> None:
    write_text(tmp_path / "deep" / "file.txt", "whole\n")
    assert (tmp_path / "deep" / "file.txt").read_text() == "whole\n"
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["file.txt"]


def test_a_full_disk_leaves_the_old_report_and_no_half_written_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_all(tmp_path, {"a.txt": "old a", "b.txt": "old b"})
    full_after_one_file(monkeypatch)
    with pytest.raises(CannotWrite, match="the disk is full: free some space"):
        write_all(tmp_path, {"a.txt": "new a", "b.txt": "new b"})
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"a.txt": "old a", "b.txt": "old b"}


@pytest.mark.parametrize("place", ["a.txt", "b.txt", "deep/c.txt"])
def test_a_folder_in_place_of_a_file_leaves_the_old_report_whole(tmp_path: Path, place: str) -> None:
    old = {name: f"old {name}" for name in ("a.txt", "b.txt") if name != place}
    write_all(tmp_path, old)
    (tmp_path / place).mkdir(parents=True)
    with pytest.raises(CannotWrite, match=f"nothing was written to .*{place} is a folder: move it away"):
        write_all(tmp_path, {"new.txt": "new", "a.txt": "new", "b.txt": "new", "deep/c.txt": "new"})
    assert files(tmp_path) == old
    assert (tmp_path / "deep").exists() == place.startswith("deep")


def test_a_rename_that_is_refused_half_way_puts_the_old_report_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_all(tmp_path, {"a.txt": "old a", "b.txt": "old b"})
    rename = os.replace

    def refuse_b(source: Path, target: Path) -> None:
        if target.name == "b.txt":
            raise OSError(errno.EACCES, os.strerror(errno.EACCES))
        rename(source, target)

    monkeypatch.setattr(os, "replace", refuse_b)
    with pytest.raises(CannotWrite, match="permission was denied"):
        write_all(tmp_path, {"new.txt": "new", "a.txt": "new a", "b.txt": "new b"})
    assert files(tmp_path) == {"a.txt": "old a", "b.txt": "old b"}


def files(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


def test_a_file_in_place_of_the_folder_is_found_before_any_work(tmp_path: Path) -> None:
    (tmp_path / "report").write_text("a file")
    with pytest.raises(BadInput, match="a part of the path is a file: name a folder"):
        probe(tmp_path / "report")


def test_a_read_only_folder_is_found_before_any_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_arguments: object, **_options: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(Path, "open", refuse)  # tests may run as a user whom no permission stops
    with pytest.raises(BadInput, match="read-only: name a folder that can be written"):
        probe(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_probe_that_is_refused_takes_away_the_folders_that_it_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    (tmp_path / "kept").mkdir()
    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(BadInput, match="the disk is full"):
        probe(tmp_path / "kept" / "reports" / "one")
    assert list(tmp_path.rglob("*")) == [tmp_path / "kept"]


def test_a_probe_leaves_nothing_behind(tmp_path: Path) -> None:
    probe(tmp_path / "report")
    assert list((tmp_path / "report").iterdir()) == []


def full_after_one_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first file still fits on the disk, the second does not."""
    synced: list[int] = []

    def sync(descriptor: int) -> None:
        synced.append(descriptor)
        if len(synced) > 1:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", sync)
