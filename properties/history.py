"""The record of a run: what was done, what the target said, what was found wrong, in order. JSONL out and in.

Owns the file format (schema below) and nothing else: it judges nothing and reads no engine. Appending keeps the values as
they are; they become JSON only when somebody writes the file, so that a record costs the hot path one append.

    {"history": 1, ...meta}                     first line: the schema version and what the run wants to say of itself
    {"op": ..., "noop": true, "admission": ...} an operation, as `properties.op` writes it
    {"event": ...} {"output": ...}              what the target told
    {"landing": ...}                            a plan executed and handed in, with the noise addresses that it drew
    {"counters": ...} {"violation": ...}
    {"rank": ...}                               what a driver of ranks saw
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from engine_under_test.errors import BadInput
from engine_under_test.events import Counters, Event, EventKind, RankEvent, RankEventKind
from engine_under_test.types import Admission, FinishReason, Output, RefusalReason, RowId
from properties.moment import NoiseAddress
from properties.op import Op
from properties.verdict import Violation

SCHEMA: Final = 1

T = TypeVar("T")


class OpRecord(NamedTuple):
    """An operation; `is_noop` if it did not apply; `admission`: what the door answered to an ADD."""

    op: Op
    is_noop: bool = False
    admission: Admission | None = None


class Landing(NamedTuple):
    """A plan that was executed and whose result was handed in. Addresses stand in the order of the draws."""

    plan_id: int
    generation: int
    rows: tuple[RowId, ...]
    tokens: tuple[tuple[int, ...], ...]
    addresses: tuple[NoiseAddress, ...] = ()


Record = OpRecord | Event | Output | Landing | Counters | Violation | RankEvent


@dataclass(slots=True)
class History:
    """``meta`` is free, but for what the checkers read: ``has_events`` false means that the target shows no events,
    ``draws_drafts`` true that its tokens depend on drafts that were drawn."""

    meta: Mapping[str, Any]
    records: list[Record]

    def __init__(self, meta: Mapping[str, Any] | None = None, records: Iterable[Record] = ()) -> None:
        self.meta = dict(meta or {})
        self.records = list(records)

    def __len__(self) -> int:
        return len(self.records)

    def add_op(self, op: Op, is_noop: bool = False, admission: Admission | None = None) -> None:
        self.records.append(OpRecord(op, is_noop, admission))

    def add(self, record: Record) -> None:
        """Keeps the record as it is: of counters that go on changing, hand in a copy."""
        self.records.append(record)

    def extend(self, records: Iterable[Record]) -> None:
        """Events, outputs: as many at once as there are."""
        self.records.extend(records)

    def of(self, kind: type[T]) -> Iterator[T]:
        """The records of one kind, in order."""
        return (record for record in self.records if isinstance(record, kind))

    def ops(self) -> tuple[Op, ...]:
        """What was done, no-ops included: enough to do it again."""
        return tuple(record.op for record in self.of(OpRecord))

    def lines(self) -> Iterator[str]:
        """The file, line by line, without line ends."""
        yield _dumps({"history": SCHEMA, **self.meta})
        for record in self.records:
            yield _dumps(to_json(record))

    def write(self, path: Path) -> None:
        with path.open("w", encoding="utf-8") as file:
            file.writelines(line + "\n" for line in self.lines())


def read(path: Path) -> History:
    """Reads a file of `History.write`. Raises BadInput, with the line number, on anything that is not one."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"a history is a readable file of JSON lines, {path} is not ({error}); name another file") from error
    return parse(text, str(path))


def parse(text: str, source: str = "history") -> History:
    """The history in `text`; `source` is how messages name it."""
    lines = text.split("\n")
    if lines[-1] != "":
        raise BadInput(
            f"each line of a history ends with a line end, {source} line {len(lines)} does not: the file is cut off; "
            f"write it again, or remove that line to read what is there"
        )
    if len(lines) == 1:
        raise BadInput(f'a history begins with a line {{"history": {SCHEMA}}}, {source} is empty; write it again')
    meta = _meta(_object(lines[0], source, 1), source)
    history = History(meta)
    for number, line in enumerate(lines[1:-1], start=2):
        data = _object(line, source, number)
        try:
            history.records.append(from_json(data))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise BadInput(f"{source} line {number} is not a record of a history: {_why(error)}; write it again") from error
    return history


def to_json(record: Record) -> dict[str, Any]:
    """The record as a JSON object without the columns that stand at their defaults."""
    return _WRITERS[type(record)](record)


def from_json(data: Mapping[str, Any]) -> Record:
    """The inverse of `to_json`. Raises KeyError, TypeError or ValueError on anything else."""
    for name, reader in _READERS.items():
        if name in data:
            return reader(data)
    raise ValueError(f"a record has one of the fields {sorted(_READERS)}, found {sorted(data)}")


def _dumps(data: Mapping[str, Any]) -> str:
    return json.dumps(data, separators=(",", ":"), ensure_ascii=True)


def _object(line: str, source: str, number: int) -> dict[str, Any]:
    try:
        data = json.loads(line)
    except ValueError as error:
        raise BadInput(f"{source} line {number} is not JSON ({error}); write the file again") from error
    if not isinstance(data, dict):
        raise BadInput(f"{source} line {number} is not a JSON object, found {line[:40]!r}; write the file again")
    return data


def _meta(head: dict[str, Any], source: str) -> dict[str, Any]:
    if "history" not in head:
        raise BadInput(
            f'{source} line 1 names the schema as {{"history": {SCHEMA}}}, found the fields {sorted(head)}; is this a history?'
        )
    version = head.pop("history")
    if type(version) is not int or version != SCHEMA:
        raise BadInput(
            f"this program reads histories of schema {SCHEMA}, {source} line 1 says {version!r}; use the version that wrote it"
        )
    return head


def _why(error: Exception) -> str:
    return f"the field {error} is missing" if isinstance(error, KeyError) else str(error)


def _row(row: RowId | None) -> list[Any] | None:
    return None if row is None else list(row)


def _row_id(data: Any) -> RowId:
    request_id, choice, incarnation, epoch = data
    return RowId(_is(request_id, str), _is(choice, int), _is(incarnation, int), _is(epoch, int))


def _is(value: Any, kind: type[T]) -> T:
    if type(value) is not kind:
        raise TypeError(f"expected {kind.__name__}, found {value!r}")
    return value


def _ints(data: Any) -> tuple[int, ...]:
    return tuple(_is(value, int) for value in data)


def _write_op(record: OpRecord) -> dict[str, Any]:
    found = record.op.to_json()
    if record.is_noop:
        found["noop"] = True
    if record.admission is not None:
        answer = record.admission
        found["admission"] = [answer.request_id, answer.incarnation, answer.refusal and answer.refusal.value, answer.message]
    return found


def _read_op(data: Mapping[str, Any]) -> OpRecord:
    rest = dict(data)
    is_noop = _is(rest.pop("noop", False), bool)
    answer = rest.pop("admission", None)
    admission = None
    if answer is not None:
        request_id, incarnation, refusal, message = answer
        admission = Admission(request_id, _is(incarnation, int), None if refusal is None else RefusalReason(refusal), message)
    return OpRecord(Op.from_json(rest), is_noop, admission)


def _write_event(event: Event) -> dict[str, Any]:
    found: dict[str, Any] = {"event": event.kind.value}
    if event.row is not None:
        found["row"] = _row(event.row)
    if event.plan_id is not None:
        found["plan"] = event.plan_id
    if event.blocks:
        found["blocks"] = list(event.blocks)
    if event.tokens:
        found["tokens"] = event.tokens
    if event.reason:
        found["reason"] = str(event.reason)
    return found


def _read_event(data: Mapping[str, Any]) -> Event:
    row, plan = data.get("row"), data.get("plan")
    return Event(
        EventKind(data["event"]),
        row=None if row is None else _row_id(row),
        plan_id=None if plan is None else _is(plan, int),
        blocks=_ints(data.get("blocks", ())),
        tokens=_is(data.get("tokens", 0), int),
        reason=_is(data.get("reason", ""), str),
    )


def _write_output(output: Output) -> dict[str, Any]:
    found: dict[str, Any] = {
        "output": [output.request_id, output.choice, output.incarnation, output.index],
        "tokens": list(output.token_ids),
    }
    if output.finish_reason is not None:
        found["finish"] = output.finish_reason.value
    if output.message:
        found["message"] = output.message
    return found


def _read_output(data: Mapping[str, Any]) -> Output:
    request_id, choice, incarnation, index = data["output"]
    finish = data.get("finish")
    return Output(
        _is(request_id, str),
        _is(choice, int),
        _is(incarnation, int),
        _is(index, int),
        _ints(data["tokens"]),
        None if finish is None else FinishReason(finish),
        _is(data.get("message", ""), str),
    )


def _write_landing(landing: Landing) -> dict[str, Any]:
    return {
        "landing": landing.plan_id,
        "generation": landing.generation,
        "rows": [list(row) for row in landing.rows],
        "tokens": [list(tokens) for tokens in landing.tokens],
        "addresses": [list(address) for address in landing.addresses],
    }


def _read_landing(data: Mapping[str, Any]) -> Landing:
    return Landing(
        _is(data["landing"], int),
        _is(data["generation"], int),
        tuple(_row_id(row) for row in data["rows"]),
        tuple(_ints(tokens) for tokens in data["tokens"]),
        tuple(NoiseAddress(*_ints(address)) for address in data["addresses"]),
    )


def _write_counters(counters: Counters) -> dict[str, Any]:
    totals: dict[str, Any] = {name: getattr(counters, name) for name in Counters.__dataclass_fields__}
    totals["finished"] = {reason.value: count for reason, count in counters.finished.items()}
    return {"counters": totals}


def _read_counters(data: Mapping[str, Any]) -> Counters:
    totals = dict(data["counters"])
    totals["finished"] = {FinishReason(reason): _is(count, int) for reason, count in totals["finished"].items()}
    return Counters(**totals)


def _write_violation(violation: Violation) -> dict[str, Any]:
    names = ("invariant", "name", "subject", "found", "expected")
    return {"violation": {**{name: getattr(violation, name) for name in names}, "facts": list(violation.facts)}}


def _read_violation(data: Mapping[str, Any]) -> Violation:
    columns = dict(data["violation"])
    columns["facts"] = tuple(_is(fact, str) for fact in columns.get("facts", ()))
    return Violation(**columns)


def _write_rank(event: RankEvent) -> dict[str, Any]:
    found: dict[str, Any] = {"rank": event.kind.value, "generation": event.generation, "at": event.at_s}
    if event.rank is not None:
        found["who"] = event.rank
    for name in _RANK_COLUMNS:
        value = getattr(event, name)
        if value != RankEvent._field_defaults[name]:
            found[name] = [list(row) for row in value] if name == "rows" else value
    return found


def _read_rank(data: Mapping[str, Any]) -> RankEvent:
    rest: dict[str, Any] = {name: data[name] for name in _RANK_COLUMNS if name in data}
    for name, reader in (("rows", _row_id), ("collectives", str), ("pool", int)):
        if name in rest:
            rest[name] = tuple(reader(each) for each in rest[name])
    rank = data.get("who")
    return RankEvent(
        RankEventKind(data["rank"]),
        _is(data["generation"], int),
        float(data["at"]),
        None if rank is None else _is(rank, int),
        **rest,
    )


_RANK_COLUMNS: Final = ("sequence", "plan_id", "rows", "collectives", "pool", "window", "bound_s", "reason", "least_s")
_WRITERS: Final[dict[type, Callable[[Any], dict[str, Any]]]] = {
    OpRecord: _write_op,
    Event: _write_event,
    Output: _write_output,
    Landing: _write_landing,
    Counters: _write_counters,
    Violation: _write_violation,
    RankEvent: _write_rank,
}
_READERS: Final[dict[str, Callable[[Mapping[str, Any]], Record]]] = {
    "op": _read_op,
    "event": _read_event,
    "output": _read_output,
    "landing": _read_landing,
    "counters": _read_counters,
    "violation": _read_violation,
    "rank": _read_rank,
}
