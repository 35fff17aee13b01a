"""Applies one mutant at import time: a finder in front of all others that compiles the file's source with the snippet replaced.

Owns the replacement in memory. Never touches a file, and never a cached byte code: what is compiled is what was read.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import linecache
import sys
from collections.abc import Sequence
from pathlib import Path
from types import CodeType, ModuleType

from ci.mutants.mutant import Mutant


class StaleMutant(Exception):
    """The snippet does not occur exactly once in its file: the mutant tests nothing until somebody rewrites it."""


class MutationTooLate(Exception):
    """The module had been imported before the mutant was installed."""


def mutated_source(mutant: Mutant, root: Path) -> str:
    """The file's text with the snippet replaced."""
    path = root / mutant.file
    if not path.is_file():
        raise StaleMutant(f"mutant {mutant.id}: its file must exist, but there is no {mutant.file}; point it to the right one")
    source = path.read_text(encoding="utf-8")
    count = source.count(mutant.snippet)
    if count != 1:
        raise StaleMutant(
            f"mutant {mutant.id}: its snippet must occur exactly once in {mutant.file}, found {count} times; rewrite the mutant"
        )
    return source.replace(mutant.snippet, mutant.replacement)


def install(mutant: Mutant, root: Path) -> ModuleType:
    """Puts the finder in place and imports the mutated module through it. Whatever the mutated source raises comes out."""
    if mutant.module in sys.modules:
        raise MutationTooLate(f"mutant {mutant.id}: {mutant.module} was imported before the mutant was installed")
    sys.meta_path.insert(0, MutantFinder(mutant, root))
    module = importlib.import_module(mutant.module)
    if not isinstance(module.__loader__, MutantLoader):
        raise MutationTooLate(
            f"mutant {mutant.id}: {mutant.module} was loaded by {module.__loader__!r}, not by the mutant loader"
        )
    return module


class MutantLoader(importlib.machinery.SourceFileLoader):
    """Compiles the mutated text under the file's own name, so that tracebacks still point into it. Whoever asks for the source
    of a function, as Triton does for its kernels, gets the mutated one."""

    def __init__(self, mutant: Mutant, root: Path) -> None:
        super().__init__(mutant.module, str(root / mutant.file))
        self._text = mutated_source(mutant, root)

    def get_code(self, fullname: str) -> CodeType:  # the inherited one would take the cached byte code of the healthy file
        path = self.get_filename(fullname)
        code: CodeType = self.source_to_code(self._text.encode(), path)
        linecache.cache[path] = (len(self._text), None, self._text.splitlines(keepends=True), path)  # never looked up again
        return code


class MutantFinder(importlib.abc.MetaPathFinder):
    """Answers for the mutated module only."""

    def __init__(self, mutant: Mutant, root: Path) -> None:
        self._mutant = mutant
        self._loader = MutantLoader(mutant, root)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        del path, target
        if fullname != self._mutant.module:
            return None
        file = self._loader.get_filename(fullname)
        return importlib.util.spec_from_file_location(fullname, file, loader=self._loader)
