"""A file that is one JSON object, read, or the sentence that says what is wrong with it. Never: what must be in it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from engine_under_test.errors import BadInput


def json_object(path: Path, rule: str, remedy: str, again: str = "fetch it again") -> dict[str, Any]:
    """Raises BadInput. Where it can not be read: ``rule``, that it must be there, and ``remedy``. Where it is something else:
    ``again``, what to do to get a good one."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadInput(f"{rule}, but {path} can not be read: {error.strerror or error}; {remedy}") from error
    except ValueError as error:
        raise BadInput(f"{path.name} must be JSON, but {path} is not ({error}): {again}") from error
    if not isinstance(data, dict):
        raise BadInput(f"{path.name} must be a JSON object, found {type(data).__name__} in {path}; {again}")
    return data
