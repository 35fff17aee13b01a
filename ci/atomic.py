"""Files are whole or absent: everything is written under a temporary name first and renamed at the end.

Owns the translation of a disk's refusals (full, read-only, not a folder) into one sentence. Never decides what is written.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from engine_under_test.errors import AssayError, BadInput

_REMEDY = {
    errno.ENOSPC: "the disk is full: free some space or name a folder on another disk",
    errno.EDQUOT: "the quota is used up: free some space or name a folder on another disk",
    errno.EROFS: "the file system is read-only: name a folder that can be written",
    errno.EACCES: "permission was denied: name a folder that can be written",
    errno.EPERM: "permission was denied: name a folder that can be written",
    errno.ENOTDIR: "a part of the path is a file: name a folder",
    errno.EEXIST: "a part of the path is a file: name a folder",
    errno.ENAMETOOLONG: "the path is too long: name a shorter one",
}


class CannotWrite(AssayError):
    """A file could not be put in place; nothing half-written is left behind."""


def write_text(path: Path, text: str) -> None:
    """Puts one file in place, or leaves what was there and raises CannotWrite."""
    write_all(path.parent, {path.name: text})


def write_all(folder: Path, texts: Mapping[str, str]) -> None:
    """Puts all of the files in place, by their names relative to the folder, or none of them: every byte is on the disk
    before the first rename. The last one renamed is the last one in `texts`."""
    staged: list[tuple[Path, Path]] = []
    try:
        for name, text in texts.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
            staged.append((temporary, path))
            _write_and_sync(temporary, text)
        for temporary, path in staged:
            os.replace(temporary, path)
    except OSError as error:
        raise CannotWrite(refusal(error, folder)) from error
    finally:
        for temporary, _path in staged:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)


def probe(folder: Path) -> None:
    """Raises BadInput at once if a report could not be put into the folder: better now than after minutes of work."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        temporary = folder / f".probe.{os.getpid()}.tmp"
        try:
            _write_and_sync(temporary, "-" * 65536)
        finally:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
    except OSError as error:
        raise BadInput(refusal(error, folder)) from error


def refusal(error: OSError, folder: Path) -> str:
    """One sentence: the rule, what was found, what to do."""
    remedy = _REMEDY.get(error.errno or 0, f"{error.strerror or error}: name a folder that can be written")
    return f"a report folder must take whole files, but nothing was written to {folder}: {remedy}"


def _write_and_sync(path: Path, text: str) -> None:
    with path.open("w", encoding="utf-8") as handle:
        handle.write(text)
        handle.flush()
        os.fsync(handle.fileno())
