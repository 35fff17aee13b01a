"""Writes docs/invariants.md: every identifier with its predicates, where they can be seen, who evaluates them, what they kill.

    python -m properties.document > docs/invariants.md
    python -m properties.document --record reports/.../verdict.json    # first remember which suites evaluated what

Owns the page and the record of evaluations beside it (docs/invariants-evaluated.json, taken from a gate's verdict.json). Knows
predicates and checkers from their own values; reads the kill table that `assay mutants --record` leaves, if there is one.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from engine_under_test.caps import Caps, DeclaredOrder, ReferenceModel, VictimSet
from engine_under_test.errors import BadInput
from properties.checkers import CHECKERS
from properties.invariants import ALL, CATALOGUE, MOST_DANGEROUS, Predicate, is_most_dangerous
from properties.invariants.peers import PEER_SENTENCES
from properties.invariants.transfers import TRANSFER_SENTENCES
from properties.moment import Happening
from properties.rank_checkers import EXACT_CHECKERS, RANK_CHECKERS, TOLD
from properties.rank_endings import ENDING_CHECKERS
from properties.streamed_text import TEXT_SENTENCES

_ROOT = Path(__file__).parents[1]
PAGE: Final = _ROOT / "docs" / "invariants.md"
EVALUATED: Final = _ROOT / "docs" / "invariants-evaluated.json"
KILLS: Final = _ROOT / "ci" / "mutants" / "kills.json"

_OF_RANKS: Final = (*EXACT_CHECKERS, TOLD, *ENDING_CHECKERS)

Names = Mapping[str, Sequence[str]]  # identifier -> suites, or mutants

_EVERYTHING = Caps(
    name="everything",
    block_size=4,
    num_blocks=8,
    max_tokens_per_step=8,
    max_num_seqs=4,
    vocab_size=16,
    progress_bound=1,
    overtake_bound=0,
    order=DeclaredOrder.PRIORITY,
    victims=VictimSet.LAST_IN_ORDER,
    preemption_bound=1,
    max_drafts=1,
    is_closed_behind_victims=True,
    num_adapter_slots=1,
    has_adapter_loads=True,
    has_transfers=True,
    has_remote=True,
    max_held_blocks=1,
    max_stored_blocks=1,
    has_lookup=True,
    has_choices=True,
    has_deadlines=True,
    has_reset=True,
    has_transaction=True,
    has_fences=True,
    has_restart=True,
    has_events=True,
)
_CONDITIONS: Final[Mapping[str, Mapping[str, Any]]] = {
    "has a padding block": {"has_padding": False},
    "has a prefix cache": {"has_prefix_cache": False},
    "keeps cached blocks in its free queue": {"evicts_on_demand": True},
    "counts references by table": {"reference_model": ReferenceModel.PATH_LOCK},
    "declares its order": {"order": DeclaredOrder.UNDECLARED},
    "orders by priority": {"order": DeclaredOrder.FIRST_COME},
    "preempts": {"victims": VictimSet.NONE},
    "admits nobody beside victims": {"is_closed_behind_victims": False},
    "states how often it preempts in a row": {"preemption_bound": None},
    "speculates": {"max_drafts": 0},
    "has slots for adapters": {"num_adapter_slots": 0},
    "loads adapters": {"has_adapter_loads": False},
    "has a remote pool": {"has_remote": False},
    "states what transfers hold": {"max_held_blocks": 0, "max_stored_blocks": 0},
    **{
        f"has {words}": {f"has_{column}": False}
        for column, words in (
            ("abort", "aborts"),
            ("choices", "several choices"),
            ("deadlines", "deadlines"),
            ("reset", "a cache reset"),
            ("transaction", "the verbs of a transaction"),
            ("fences", "fences"),
            ("restart", "a restart"),
            ("events", "events"),
        )
    },
}
"""What a target must have, with the change that takes it away: observability is found by asking each predicate."""

_GROUPS: Final = {
    "KV": "KV ownership",
    "SC": "Scheduler",
    "SE": "Semantics",
    "ST": "Statistics",
    "AS": "Asynchronous execution",
    "RS": "Resources of a request",
    "DI": "Distributed",
    "SK": "Long runs",
}


def page(evaluated: Names, kills: Names) -> str:
    """The whole page."""
    lines = [*_head(), *_danger(kills), *_unproven(kills), *_unjudged()]
    for prefix, title in _GROUPS.items():
        lines += [f"## {title}", ""]
        for identifier, entry in CATALOGUE.items():
            if identifier.startswith(prefix + "-"):
                lines += _section(identifier, entry.name, entry.statement, evaluated, kills)
    return "\n".join(lines).rstrip() + "\n"


def read_evaluated(path: Path = EVALUATED) -> Names:
    """Identifier -> suites that evaluated it in the recorded gate run; empty if none was recorded."""
    by_suite = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    found: dict[str, list[str]] = {}
    for suite, identifiers in sorted(by_suite.items()):
        for identifier in identifiers:
            found.setdefault(identifier, []).append(suite)
    return found


def read_kills(path: Path = KILLS) -> Names:
    """Identifier -> mutants that it killed, as last recorded; empty if nothing was."""
    if not path.exists():
        return {}
    found: dict[str, list[str]] = {}
    for mutant in json.loads(path.read_text(encoding="utf-8"))["mutants"]:
        if mutant["verdict"] == "killed":
            for identifier in dict.fromkeys((mutant["by"], *mutant.get("also", ()))):
                found.setdefault(identifier, []).append(mutant["id"])
    return found


def evaluated_in(verdict: Mapping[str, Any]) -> dict[str, list[str]]:
    """Suite -> identifiers that it evaluated at least once, from the content of a verdict.json."""
    return {
        check["id"]: sorted((name for name, count in check["invariants"].items() if count > 0), key=_natural)
        for check in sorted(verdict["checks"], key=lambda check: str(check["id"]))
        if any(check["invariants"].values())
    }


def record(path: Path, to: Path = EVALUATED) -> None:
    """Remembers which suites evaluated what. Raises BadInput if `path` is no verdict.json."""
    try:
        found = evaluated_in(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadInput(f"{path} is not the verdict.json of a gate ({error!r}); name the one in a report folder") from error
    to.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def _head() -> list[str]:
    return [
        "# Invariants",
        "",
        "Generated by `python -m properties.document`; do not edit. What must always hold, who checks it, where it can be",
        "seen, and which re-created bugs it has caught.",
        "",
        "- A *predicate* judges one moment of a run (`properties/invariants/`), a *checker* a whole run from its history",
        "  (`properties/checkers.py`), a *text sentence* a choice as the reader of its streamed text saw it",
        "  (`properties/streamed_text.py`), a *transfer sentence* an instant of KV transfers, seen at both ends",
        "  (`properties/invariants/transfers.py`), a *rank sentence* a run of a group of ranks as its driver saw it",
        "  (`properties/rank_checkers.py`).",
        "- *Observable where* says what a target must have for a predicate to see anything. Elsewhere the invariant is *not",
        "  observable* for that target, which is never the same as passed.",
        "- *Suites* are those that evaluated the identifier in the gate run that was recorded last.",
        "- *Kills* are the mutants that the identifier's predicates found, first or on their own, as `assay mutants --record`",
        "  saw them.",
        "",
    ]


def _danger(kills: Names) -> Iterator[str]:
    yield from ("## The three most dangerous", "")
    for sentence, identifiers in MOST_DANGEROUS.items():
        named = ", ".join(f"{name} ({len(kills.get(name, ()))} kills)" for name in identifiers)
        yield f"- {sentence[0].upper()}{sentence[1:]}: {named}"
    yield ""


def _unproven(kills: Names) -> list[str]:
    judged = dict.fromkeys(predicate.identifier for predicate in ALL)
    unproven = sorted((name for name in judged if not kills.get(name)), key=_natural)
    if not kills:
        return ["## Unproven", "", "No kill table has been recorded yet: every predicate is unproven.", ""]
    named = [
        f"**{name}** {CATALOGUE[name].name}" if is_most_dangerous(name) else f"{name} {CATALOGUE[name].name}"
        for name in unproven
    ]
    told = ", ".join(named) or "none"
    hunts = "in the hunts recorded so far ([corpus.md](corpus.md) says which mutants were not hunted yet)"
    return ["## Unproven", "", f"Judged by predicates that killed no mutant {hunts}, {len(unproven)}: {told}.", ""]


def _unjudged() -> list[str]:
    judged = {predicate.identifier for predicate in ALL} | {checker.identifier for checker in CHECKERS}
    judged |= {each.identifier for each in TEXT_SENTENCES}
    judged |= {sentence.identifier for sentence in (*TRANSFER_SENTENCES, *PEER_SENTENCES)}
    judged |= {checker.identifier for checker in _OF_RANKS}
    left = [f"{entry.identifier} {entry.name}" for entry in CATALOGUE.values() if entry.identifier not in judged]
    told = (
        "Nothing in `properties/` judges these; what they speak of is judged by statistics or reference models, or joins later:"
    )
    return ["## Without a predicate or checker here", "", told, ", ".join(left) + ".", ""]


def _section(identifier: str, name: str, statement: str, evaluated: Names, kills: Names) -> Iterator[str]:
    mark = " (one of the three most dangerous)" if is_most_dangerous(identifier) else ""
    yield from (f"### {identifier} {name}{mark}", "", f"{statement[0].upper()}{statement[1:]}.", "")
    predicates = [predicate for predicate in ALL if predicate.identifier == identifier]
    checkers = [checker for checker in CHECKERS if checker.identifier == identifier]
    of_texts = [each for each in TEXT_SENTENCES if each.identifier == identifier]
    of_transfers = [each for each in TRANSFER_SENTENCES if each.identifier == identifier]
    of_peers = [each for each in PEER_SENTENCES if each.identifier == identifier]
    of_ranks = [each for each in _OF_RANKS if each.identifier == identifier]
    if not (predicates or checkers or of_texts or of_transfers or of_peers or of_ranks):
        suites = evaluated.get(identifier, ())
        if suites:  # by comparison with a reference, or by a statistical test
            told = f"Judged by the suites themselves: {_listed(suites)}. Kills: {_listed(kills.get(identifier, ()))}."
            yield from (told, "")
        else:
            yield from ("No predicate or checker yet.", "")
        return
    yield from ("| sentence | judged at | observable where the target | source |", "|---|---|---|---|")
    for predicate in predicates:
        yield f"| {predicate.sentence} | {_when(predicate)} | {_observability(predicate)} | {predicate.source} |"
    for checker in checkers:
        where = "has events" if checker.needs_events else "is any"
        yield f"| {checker.sentence} | whole run | {where} | `properties/checkers.py` |"
    for each in of_texts:
        yield f"| {each.sentence} | each streamed choice | has a text front | `properties/streamed_text.py` |"
    for sentence in of_transfers:
        source = "`properties/invariants/transfers.py`"
        yield f"| {sentence.sentence} | each instant of a transfer | has a connector | {source} |"
    for peer in of_peers:
        yield f"| {peer.sentence} | each peer of a store | is a store or its engine | `properties/invariants/peers.py` |"
    for checker in of_ranks:
        where = "is a group of ranks" if checker in (*RANK_CHECKERS, TOLD) else "is a group of ranks on a virtual clock"
        module = checker.check.__module__.replace(".", "/")
        yield f"| {checker.sentence} | whole run of a group | {where} | `{module}.py` |"
    yield ""
    yield f"Suites: {_listed(evaluated.get(identifier, ()))}. Kills: {_listed(kills.get(identifier, ()))}."
    yield ""


def _when(predicate: Predicate) -> str:
    if predicate.happenings is None:
        return "every moment"
    if len(predicate.happenings) > len(Happening) / 2:
        left_out = [happening.value for happening in Happening if happening not in predicate.happenings]
        return f"every moment but {_listed(left_out)}"
    return _listed([happening.value for happening in Happening if happening in predicate.happenings])


def _observability(predicate: Predicate) -> str:
    """Asks the predicate what it can do without."""
    needed = [words for words, without in _CONDITIONS.items() if not predicate.is_observable(replace(_EVERYTHING, **without))]
    needed += [f"shows {column.removeprefix('after.')}" for column in predicate.needs if column in _SHOWN]
    return " and ".join(needed) or "is any"


_SHOWN: Final = frozenset({"after.ref_counts", "counters"})


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names) or "none recorded"


def _natural(identifier: str) -> tuple[str, int]:
    prefix, _, number = identifier.partition("-")
    return prefix, int(number) if number.isdigit() else 0


def main(arguments: Sequence[str]) -> int:
    """Exit code 0, or 64 after one sentence on what was wrong with the arguments."""
    try:
        if arguments[:1] == ["--record"] and len(arguments) == 2:
            record(Path(arguments[1]))
        elif arguments:
            raise BadInput(f"the only option is --record with the path of a verdict.json, found {' '.join(arguments)!r}")
    except BadInput as refusal:
        sys.stderr.write(f"{refusal}\n")
        return 64
    sys.stdout.write(page(read_evaluated(), read_kills()))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
