"""Writes docs/faults.md: every kind of fault, where it strikes, how it heals, what may be seen of it, and who watches.

python -m chaos.document > docs/faults.md
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from chaos.nemesis import NEMESES

PAGE: Final = Path(__file__).parents[1] / "docs" / "faults.md"


def lines() -> Iterator[str]:
    """The page, line by line."""
    yield "# Faults"
    yield ""
    yield "Written by `python -m chaos.document > docs/faults.md`; each kind is one file in `chaos/nemesis/`."
    yield ""
    yield "A storm draws which kinds are active at all, then when each strikes. `assay chaos --faults KIND,...` takes the names"
    yield "below. *Simulated* faults are made of operations and choices, so they shrink, and replay bit for bit."
    yield ""
    yield "| kind | what happens | seam | heals | users may see | most likely noticed by | real where |"
    yield "|---|---|---|---|---|---|---|"
    for kind, nemesis in NEMESES.items():
        module = sys.modules[f"chaos.nemesis.{kind.value.replace('-', '_')}"]
        what = " ".join((module.__doc__ or "").split())
        row = (
            f"`{kind.value}`",
            what,
            f"`{nemesis.seam}`" if nemesis.seam.isidentifier() else nemesis.seam,
            nemesis.heals,
            nemesis.observed,
            ", ".join(nemesis.watched_by),
            ", ".join(nemesis.modes),
        )
        yield f"| {' | '.join(row)} |"


def main() -> None:
    sys.stdout.write("\n".join(lines()) + "\n")


if __name__ == "__main__":
    main()
