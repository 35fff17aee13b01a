"""Files are whole or absent: everything is written under a temporary name first and renamed at the end.

Owns the translation of a disk's refusals (full, read-only, not a folder) into one sentence. Never decides what is written.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
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
    made: list[Path] = []
    try:
        for name, text in texts.items():
            path = folder / name
            _make_folder(path.parent, made)
            temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
            staged.append((temporary, path))
            _write_and_sync(temporary, text)
        _replace_all(staged)
    except BaseException as error:
        _remove(temporary for temporary, _path in staged)
        _unmake(made)
        if isinstance(error, OSError):
            raise CannotWrite(refusal(error, folder)) from error
        raise


def _replace_all(staged: Sequence[tuple[Path, Path]]) -> None:
    """Renames all of them or none: a refusal half-way puts back what was there before."""
    for _temporary, path in staged:
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    kept: dict[Path, Path] = {}
    done: list[Path] = []
    try:
        for temporary, path in staged:
            if path.exists():
                kept[path] = temporary.with_suffix(".old")
                shutil.copy2(path, kept[path])
        for temporary, path in staged:
            os.replace(temporary, path)
            done.append(path)
    except BaseException:
        for path in done:
            if path in kept:
                os.replace(kept[path], path)
            else:
                path.unlink()
        raise
    finally:
        _remove(kept.values())


def _make_folder(folder: Path, made: list[Path]) -> None:
    """Adds the folders that were not there yet to `made`, outermost first."""
    made += reversed([each for each in (folder, *folder.parents) if not each.exists()])
    folder.mkdir(parents=True, exist_ok=True)


def _unmake(made: Sequence[Path]) -> None:
    """Takes away again what `_make_folder` made, as far as it is empty."""
    for empty in reversed(made):
        with suppress(OSError):
            empty.rmdir()


def _remove(paths: Iterable[Path]) -> None:
    for path in paths:
        with suppress(OSError):
            path.unlink(missing_ok=True)


def probe(folder: Path) -> None:
    """Raises BadInput at once if a report could not be put into the folder: better now than after minutes of work."""
    made: list[Path] = []
    try:
        _make_folder(folder, made)
        temporary = folder / f".probe.{os.getpid()}.tmp"
        try:
            _write_and_sync(temporary, "-" * 65536)
        finally:
            _remove((temporary,))
    except OSError as error:
        _unmake(made)
        raise BadInput(refusal(error, folder)) from error


@contextmanager
def claimed(folder: Path) -> Iterator[None]:
    """The folder is this process's alone, until it ends if that is earlier. Raises BadInput if another gate has it: the two
    would write one report over the other. Nothing is left in the folder."""
    number = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # a file system without locks: nobody can be asked
            try:
                fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise BadInput(
                    f"a report folder takes one gate at a time, but another one is at work for {folder}; "
                    "wait until it has ended, or name another folder with --report"
                ) from None
        yield
    finally:
        os.close(number)


def refusal(error: OSError, folder: Path) -> str:
    """One sentence: the rule, what was found, what to do."""
    if error.errno == errno.EISDIR:
        remedy = f"{error.filename} is a folder: move it away, a file of the report goes there"
    else:
        remedy = _REMEDY.get(error.errno or 0, f"{error.strerror or error}: name a folder that can be written")
    return f"a report folder must take whole files, but nothing was written to {folder}: {remedy}"


def _write_and_sync(path: Path, text: str) -> None:
    with path.open("w", encoding="utf-8") as handle:
        handle.write(text)
        handle.flush()
        os.fsync(handle.fileno())
