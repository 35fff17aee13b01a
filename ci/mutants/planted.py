"""One known bug in every process that is started from here on: for a gate over an engine that is known to be wrong.

Owns the folder that makes an interpreter install a mutant before anything else, and the search path that leads there. Never
a file of the source, and never this process: what was imported here stays as it is. Imports of the project are `mutant` and
`loader` alone, for whoever must not have imported the engine yet.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ci.mutants.loader import mutated_source
from ci.mutants.mutant import Mutant


def write_customization(folder: Path, mutant: Mutant, root: Path) -> None:
    """Interpreters that find `folder` on their search path install the mutant (sitecustomize, see the module `site`)."""
    lines = (
        "import sys",
        "from pathlib import Path",
        "from ci.mutants.loader import MutantFinder",
        "from ci.mutants.mutant import Mutant",
        f"sys.meta_path.insert(0, MutantFinder({mutant!r}, Path({str(root)!r})))",
    )
    (folder / "sitecustomize.py").write_text("\n".join(lines) + "\n", encoding="utf-8")


@contextmanager
def planted(mutant: Mutant | None, root: Path) -> Iterator[None]:
    """Processes that are started inside have the bug, if there is one. StaleMutant if it fits the source no more."""
    if mutant is None:
        yield
        return
    mutated_source(mutant, root)
    before = os.environ.get("PYTHONPATH")
    with tempfile.TemporaryDirectory(prefix="assay-mutant-") as folder:
        write_customization(Path(folder), mutant, root)
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [folder, str(root), before]))
        try:
            yield
        finally:
            if before is None:
                del os.environ["PYTHONPATH"]
            else:
                os.environ["PYTHONPATH"] = before
