"""What the run ran on, and which optional parts are installed.

Owns the reading of the machine and the sentence for a missing extra. Never imports a heavy library to ask whether it is there.
"""

from __future__ import annotations

import os
import platform
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from engine_under_test.errors import BadInput

_EXTRAS = {
    "model": ("torch", "triton", "gguf", "safetensors", "tokenizers"),
    "reference": ("torch", "transformers"),
    "grammar": ("llguidance",),
    "connector": ("msgpack", "xxhash"),
    "chaos": ("toxiproxy", "docker", "psutil"),
    "cluster": ("ray",),
}
_SHOWN = ("numpy", "scipy", "hypothesis", "pytest", "pytest-xdist")


def version() -> str:
    """The installed version of this project."""
    return metadata.version("assay")


def num_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def has_cuda_device() -> bool:
    return Path("/dev/nvidia0").exists() or Path("/dev/dxg").exists()


def device_text() -> str:
    return "cuda device present" if has_cuda_device() else "cpu (no CUDA device)"


def missing_modules(extra: str) -> tuple[str, ...]:
    """The modules of an extra that are not installed."""
    return tuple(name for name in _EXTRAS[extra] if find_spec(name) is None)


def require_extra(extra: str, what_for: str) -> None:
    """Raises BadInput with the command that installs the extra, if a part of it is missing."""
    if missing := missing_modules(extra):
        raise BadInput(
            f"{what_for} needs the optional extra {extra!r}, but {' and '.join(missing)} is not installed; "
            f"run pip install -c constraints.txt 'assay[{extra}]'"
        )


def describe() -> dict[str, str]:
    """Name and value of everything that a reader of a report asks for."""
    found = {
        "assay": version(),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cores": str(num_cores()),
        "device": device_text(),
    }
    found |= {name: metadata.version(name) for name in _SHOWN}
    found |= {f"extra {name}": _extra_text(name) for name in _EXTRAS}
    return found


def _extra_text(extra: str) -> str:
    missing = missing_modules(extra)
    return f"missing {', '.join(missing)}" if missing else "installed"
