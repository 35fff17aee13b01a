"""The replay file: a world, the operations that break it, and what broke. JSON, schema 1.

Owns the form, its version and every complaint about a file that is not one. Never runs it (`replay.py`).
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_type_hints

from ci.codec import violation_from_json, violation_to_json
from ci.environment import version
from engine_under_test.config import EngineConfig, Order
from engine_under_test.errors import BadInput
from properties.invariants.catalogue import CATALOGUE
from properties.op import Op, OpKind
from properties.suite import Failure
from properties.verdict import Violation

FORMAT = "assay-replay"
SCHEMA = 1
_BEYOND_THE_CATALOGUE = ("CRASH", "DET", "TR-1")  # an exception, two runs that differ, the bound of a trace
_MOST = 1 << 20  # of anything that a configuration counts: a world with more is none that a gate writes
_OLDEST_ENGINE = (0, 1)  # an older engine's worlds can not be built any more
_NAME_ANOTHER = "name a file that a gate wrote to reports/<commit>/replay/"


@dataclass(frozen=True, slots=True)
class ReplayFile:
    """``world`` is a spec for `models.build.world_from`; ``engine`` the version of this project that wrote the file."""

    engine: str
    check: str
    seed: str
    world: Mapping[str, Any]
    ops: tuple[Op, ...]
    violation: Violation
    ops_found: int = 0


def replay_of(check: str, failure: Failure) -> ReplayFile:
    """The file for a failure that has operations."""
    return ReplayFile(version(), check, failure.seed, failure.world, failure.ops, failure.violation, failure.ops_found)


def to_text(replay: ReplayFile) -> str:
    """The file's text: one operation a line, so that a person can cut it."""
    head = {
        "format": FORMAT,
        "schema": SCHEMA,
        "engine": replay.engine,
        "check": replay.check,
        "seed": replay.seed,
        "world": dict(replay.world),
        "violation": violation_to_json(replay.violation),
        "ops_found": replay.ops_found,
    }
    ops = ",\n".join(f"  {json.dumps(op.to_json())}" for op in replay.ops)
    return json.dumps(head, indent=1)[:-2] + f',\n "ops": [\n{ops}\n ]\n}}\n'


def read_replay(path: Path) -> ReplayFile:
    """Reads a file that a person named. Anything but a whole replay file of this version is a BadInput that says why."""
    data = _json_object(path)
    if data.get("format") != FORMAT:
        raise BadInput(
            f'{path} is not a replay file: its "format" must be {FORMAT!r}, found {data.get("format")!r}; {_NAME_ANOTHER}'
        )
    _check_versions(path, data)
    try:
        _check_config(_mapping(data["world"]))
        return ReplayFile(
            engine=data["engine"],
            check=data["check"],
            seed=data["seed"],
            world=_mapping(data["world"]),
            ops=tuple(_op(place, item) for place, item in enumerate(data["ops"], start=1)),
            violation=_violation(data["violation"]),
            ops_found=_ops_found(data.get("ops_found", 0)),
        )
    except KeyError as error:
        raise BadInput(
            f"{path} is not a whole replay file: the field {error} is missing; write it again with a gate"
        ) from error
    except (TypeError, ValueError, AttributeError) as error:
        raise BadInput(f"{path} is not a whole replay file: {error}") from error


def _ops_found(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"ops_found must be a whole number from 0 on, found {value!r}; mend the file")
    return value


def _json_object(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except RecursionError:
        raise BadInput(
            f"{path} is not a replay file: its JSON is nested deeper than any that a gate writes; copy it again from the report"
        ) from None
    except FileNotFoundError:
        raise BadInput(
            f"a replay needs a file, but there is no {path}; a gate writes them to reports/<commit>/replay/"
        ) from None
    except UnicodeDecodeError as error:
        raise BadInput(
            f"{path} is not a replay file: it is not UTF-8 text ({error.reason} at byte {error.start}); {_NAME_ANOTHER}"
        ) from error
    except json.JSONDecodeError as error:
        raise BadInput(
            f"{path} is not a whole replay file: the JSON breaks off or goes wrong at line {error.lineno}, "
            f"column {error.colno} ({error.msg}); copy it again from the report"
        ) from error
    except ValueError as error:  # json leaves it to int() to refuse a number of thousands of digits
        raise BadInput(
            f"{path} is not a replay file: a number in it is longer than any that a gate writes ({error}); copy it again"
        ) from None
    except OSError as error:
        raise BadInput(
            f"a replay needs a readable file, but {path} can not be read: {error.strerror}; {_NAME_ANOTHER}"
        ) from error
    if not isinstance(data, dict):
        raise BadInput(f"{path} is not a replay file: it must hold a JSON object, found {type(data).__name__}; {_NAME_ANOTHER}")
    return data


def _check_versions(path: Path, data: dict[str, Any]) -> None:
    schema, engine = data.get("schema"), data.get("engine")
    if type(schema) is not int or type(engine) is not str:
        raise BadInput(f'{path} must say its "schema" (a number) and its "engine" (a version), found {schema!r} and {engine!r}')
    if schema != SCHEMA:
        age = "too new" if schema > SCHEMA else "too old"
        raise BadInput(
            f"{path} is {age}: its format is schema {schema}, this assay reads schema {SCHEMA}; {_remedy(schema > SCHEMA)}"
        )
    theirs, ours = _series(path, engine), _series(path, version())
    if theirs > ours:
        raise BadInput(f"{path} is too new: engine {engine} wrote it, this is {version()}; {_remedy(True)}")
    if theirs < _OLDEST_ENGINE:
        raise BadInput(f"{path} is too old: engine {engine} wrote it, this is {version()}; {_remedy(False)}")


def _remedy(is_newer: bool) -> str:
    return "install the assay that wrote it" if is_newer else "check out the commit that wrote it, or run its gate again"


def _series(path: Path, text: str) -> tuple[int, int]:
    try:
        major, minor = text.split(".")[:2]
        return int(major), int(minor)
    except ValueError:
        raise BadInput(f"{path}: an engine version reads like 0.1.0, found {text!r}") from None


def _op(place: int, item: Any) -> Op:
    if not isinstance(item, dict):
        raise TypeError(f"operation {place} is not one: it must be an object, found {item!r}")
    if item.get("op") not in list(OpKind):
        raise ValueError(f"operation {place} is not one: op must be one of {', '.join(OpKind)}, found {item.get('op')!r}")
    try:
        return Op.from_json(item)
    except KeyError as error:
        raise ValueError(f"operation {place} is not one: the field {error} is missing") from error
    except (TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"operation {place} is not one: {error}") from error


def _violation(data: Any) -> Violation:
    """What the file says broke. An identifier that nobody judges could never break again."""
    violation = violation_from_json(data)
    known = [*CATALOGUE, *_BEYOND_THE_CATALOGUE]
    if violation.invariant not in known:
        near = difflib.get_close_matches(str(violation.invariant), known, n=3, cutoff=0.0)
        raise ValueError(
            f"violation.invariant must be an identifier of docs/invariants.md, found {violation.invariant!r}; "
            f"the nearest are {', '.join(near)}"
        )
    return violation


def _check_config(world: Mapping[str, Any]) -> None:
    """Each field of the configuration has the type that the engine declares; what values go together, the engine says."""
    config = world.get("config", {})
    if not isinstance(config, dict):
        raise TypeError(f"world.config must be an object, found {config!r}")
    for name, kind in get_type_hints(EngineConfig).items():
        if name in config and not _is_a(kind, config[name]):
            raise TypeError(f"world.config.{name} must be {_in_words(kind)}, found {config[name]!r}; mend the file")
        if kind is int and name in config and config[name] > _MOST:
            raise ValueError(f"world.config.{name} must be {_MOST} at most, found {config[name]}; mend the file")


def _is_a(kind: Any, value: Any) -> bool:
    if kind is Order:
        return value in list(Order)
    if kind in (int, bool, str):
        return type(value) is kind  # True is no number here
    pairs = value if isinstance(value, list) else [None]
    return all(isinstance(pair, list) and [type(item) for item in pair] == [str, int] for pair in pairs)


def _in_words(kind: Any) -> str:
    simple = {int: "a whole number", bool: "true or false", str: "a text", Order: f"one of {', '.join(Order)}"}
    return simple.get(kind, 'a list of ["name", version]')


def _mapping(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise TypeError(f"world must be an object, found {value!r}")
    return value
