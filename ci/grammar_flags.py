"""`--json-schema`, `--regex` and `--choice`: from what a person writes to a `GrammarSpec`.

Owns: files that hold schemas, and that only one of the three is asked for. Never: whether a grammar can be compiled.
"""

from __future__ import annotations

import json
from pathlib import Path

from engine_under_test.errors import BadInput
from engine_under_test.types import GrammarKind, GrammarSpec

FLAGS = {GrammarKind.JSON_SCHEMA: "--json-schema", GrammarKind.REGEX: "--regex", GrammarKind.CHOICE: "--choice"}


def grammar_of(json_schema: str | None, regex: str | None, choices: tuple[str, ...]) -> GrammarSpec | None:
    """What is asked for, if anything is. Raises BadInput."""
    asked = {
        GrammarKind.JSON_SCHEMA: () if json_schema is None else (_schema(json_schema),),
        GrammarKind.REGEX: () if regex is None else (regex,),
        GrammarKind.CHOICE: choices,
    }
    specs = [GrammarSpec(kind, sources) for kind, sources in asked.items() if sources]
    if len(specs) > 1:
        found = " and ".join(FLAGS[spec.kind] for spec in specs)
        raise BadInput(f"an answer has one grammar at most, found {found}; leave all but one away")
    return specs[0] if specs else None


def _schema(written: str) -> str:
    """The schema itself, or what the file of this name holds."""
    if not written.strip():
        raise BadInput("--json-schema is a schema, or the name of a file with one, found nothing; leave it away or name one")
    if written.lstrip()[:1] in ("{", "[", '"') or (_is_json(written) and not Path(written).exists()):
        return written  # whether it is a schema, the grammar's own rules say
    try:
        return Path(written).read_text("utf-8")
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise BadInput(
            f"--json-schema is a schema, or the name of a file with one, found {written[:80]!r}: {why}; correct it"
        ) from error


def _is_json(written: str) -> bool:
    try:
        json.loads(written)
    except ValueError:
        return False
    return True
