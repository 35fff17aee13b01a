"""Writes docs/faults.md: every kind of fault, where it strikes, how it heals, what may be seen of it, and who watches.

python -m chaos.document > docs/faults.md
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import wrap
from typing import Final

from chaos.nemesis import CONNECTION_NEMESES, NEMESES, ConnectionNemesis, Nemesis
from chaos.rank_strikes import MEANINGS, NOTICED
from engine_under_test.distributed.rank_messages import RankPhase

_OF_CONNECTIONS: Final = """\
`assay chaos --connector` and the suite `connectors` run a real `assay kv-store` behind a Toxiproxy
([toxiproxy.md](toxiproxy.md)), with two engines on real connections: whole ones, one of them on the simulated
device, each at a depth of overlap of its own, judged by all the catalogue, in turn with bare ends that move large blocks;
`--faults` takes these kinds too. First each kind strikes alone, a toxic in both
directions, on every link or on that of one engine, until it has touched traffic; whoever is out of it keeps its connection;
then several fall together; then everything is healed and comes to its end, an engine stores what another one loads, and the
store is asked for every key and for all its room. What a fault did is counted from what the ends saw of it, and one that
touched nothing makes the run unknown. Real processes, hence not bit-for-bit repeatable: what happened is recorded
(`reports/chaos/*-connectors-*.jsonl`), and nothing is shrunk."""
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
        yield _row(kind.value, nemesis)
    yield from _connections()
    yield from _blows()


def _row(kind: str, nemesis: Nemesis | ConnectionNemesis) -> str:
    module = sys.modules[f"chaos.nemesis.{kind.replace('-', '_')}"]
    what = " ".join((module.__doc__ or "").split())
    row = (
        f"`{kind}`",
        what,
        f"`{nemesis.seam}`" if nemesis.seam.isidentifier() else nemesis.seam,
        nemesis.heals,
        nemesis.observed,
        ", ".join(nemesis.watched_by),
        ", ".join(nemesis.modes),
    )
    return f"| {' | '.join(row)} |"


def _connections() -> Iterator[str]:
    """What befalls a real store and the connections to it."""
    yield from ("", "## Connections", "")
    yield from wrap(_OF_CONNECTIONS, 120, break_on_hyphens=False)
    yield ""
    yield "| kind | what happens | seam | heals | users may see | most likely noticed by | real where | counted by |"
    yield "|---|---|---|---|---|---|---|---|"
    for kind, nemesis in CONNECTION_NEMESES.items():
        yield f"{_row(kind.value, nemesis)} {nemesis.evidence} |"


def _blows() -> Iterator[str]:
    """What befalls ranks."""
    phases = ", ".join(phase.value for phase in RankPhase)
    yield from ("", "## Ranks", "")
    yield "`chaos/rank_strikes.py` deals these to one process of a group of ranks, at a chosen phase of a chosen step"
    yield f"({phases}). They heal by a new generation of the group and of the engine; users see the"
    yield "same tokens, or an error that names the rank (`Policy` in `engine_under_test/distributed/rank_supervisor.py`). DI-1,"
    yield "DI-2, SC-5, SC-11 and SE-2 watch. A group computes fingerprints, or a small Llama with fewer KV heads"
    yield "than four ranks. A storm that is not over in its time counts as hung, and says where. Real processes, hence not"
    yield "bit-for-bit repeatable: the suite `ranks` records what happened, and shrinks nothing."
    yield ""
    yield "The suite `ranks-in-turn` deals the like, and answers that differ, lies, deaths in every generation and a driver"
    yield "that is away, to ranks that are played (`chaos/scripted_ranks.py`), at every moment of a step, before the real"
    yield "driver, supervisor and engine. Its clock moves only when somebody waits, so who is named, and when at the earliest"
    yield "and at the latest, is judged to the virtual second, and a case has the same history each time."
    yield from ("", "| blow | what happens | how it is noticed |", "|---|---|---|")
    for blow, meaning in MEANINGS.items():
        yield f"| `{blow.value}` | {meaning} | {NOTICED[blow]} |"


def main() -> None:
    sys.stdout.write("\n".join(lines()) + "\n")


if __name__ == "__main__":
    main()
