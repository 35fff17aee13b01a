"""Replays workloads of language models with adapters: each operation, then what became of each request.

Owns the story of such a run; the comparison with what the file promised is that of every replay (`replay.py`). Never changes
the file. Imports the model inside: an extra.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ci.op_words import describe_op
from ci.replay import Replayed
from ci.replay_file import ReplayFile
from ci.timeline import Scene
from ci.wording import count
from engine_under_test.errors import BadInput

if TYPE_CHECKING:
    from differential.adapted_world import Judged


def replay_adapters(file: ReplayFile, until: int | None = None) -> Replayed:
    """Runs the operations again, at most the first `until`, up to the end of every request, and judges."""
    from ci.environment import require_extra

    require_extra("model", "a replay of language models")
    from differential.adapted_world import judge
    from differential.threads import one_thread

    ops = file.ops if until is None else file.ops[:until]
    try:
        with one_thread():
            judged = judge(file.world, ops) if ops else None
    except (KeyError, TypeError, ValueError) as error:
        raise BadInput(f"a replay of adapters has a config, a seed and a setting, found {error!r}; mend the file") from error
    scenes = [Scene(number, *describe_op(op), False, (), blocks={}, state=()) for number, op in enumerate(ops)]
    violation = None if judged is None else judged.violation
    if judged is not None and scenes:
        told = tuple(_told(judged))
        scenes.append(Scene(len(ops), "drain", "every request to its end", False, told, {}, told, violation))
    header = f"{count(len(ops), 'operation')} on a tiny model with adapters"
    return Replayed(file, header, tuple(scenes), violation, num_left=len(file.ops) - len(ops))


def _told(judged: Judged) -> Iterator[str]:
    """What each request said, and under which adapter."""
    for each in judged.ran.emitted:
        adapter = each.request.adapter
        under = "without an adapter" if adapter is None else f"with {adapter.name} version {adapter.version}"
        yield f"{each.request.request_id} {under}: tokens {', '.join(map(str, each.tokens)) or 'none'}"
