"""What a request body says: JSON read by declared fields, or one sentence that says what is wrong with it.

The rules are those of a typed decoder: names in any case, unknown names ignored, null leaves the default, a value of another
type is refused, and so is whatever is no JSON. What follows the first value is not read.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping

from chaos.toxiproxy.api_error import bad_body

_INT64 = 1 << 63


def _refuse_constant(name: str) -> object:
    raise ValueError(f"{name} is not JSON")


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)


def json_value(body: bytes) -> object:
    text = body.decode("utf-8", errors="replace").lstrip(" \t\r\n")
    if not text:
        raise bad_body("the body is empty, expected JSON")
    try:
        value: object = _DECODER.raw_decode(text)[0]
    except RecursionError as error:
        raise bad_body("nested too deeply") from error
    except ValueError as error:
        raise bad_body(str(error)) from error
    return value


class Fields:
    """The fields of one JSON object, by name in any case; null reads as absent."""

    def __init__(self, value: object) -> None:
        if value is not None and not isinstance(value, Mapping):
            raise bad_body(f"expected an object, found {_kind(value)}")
        items = {} if value is None else value
        self._values = {str(name).lower(): item for name, item in items.items() if item is not None}

    def value(self, name: str) -> object:
        return self._values.get(name)

    def text(self, name: str, default: str = "") -> str:
        value = self._values.get(name, default)
        if not isinstance(value, str):
            raise _mismatch(name, "a string", value)
        return value

    def truth(self, name: str, default: bool) -> bool:
        value = self._values.get(name, default)
        if not isinstance(value, bool):
            raise _mismatch(name, "true or false", value)
        return value

    def whole(self, name: str, default: int) -> int:
        value = self._values.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or not -_INT64 <= value < _INT64:
            raise _mismatch(name, "a whole number of 64 bits", value)
        return value

    def number(self, name: str, default: float) -> float:
        value = self._values.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise _mismatch(name, "a number", value)
        try:
            as_float = float(value)
        except OverflowError as error:
            raise bad_body(f"{name} is too large") from error
        if not math.isfinite(as_float):
            raise bad_body(f"{name} is too large")
        return as_float


def _kind(value: object) -> str:
    names = {bool: "true or false", int: "a number", float: "a number", str: "a string", list: "a list", dict: "an object"}
    return names.get(type(value), "null")


def _mismatch(name: str, expected: str, found: object) -> Exception:
    return bad_body(f"{name} takes {expected}, found {_kind(found)}")
