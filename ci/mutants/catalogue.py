"""The list of mutants. Data only; how they are applied is in `loader.py`, how they are hunted in `runner.py`."""

from __future__ import annotations

from ci.mutants.mutant import Mutant

FLOOR = 16  # at least as many are killed whenever all are hunted

MUTANTS: tuple[Mutant, ...] = ()
