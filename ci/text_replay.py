"""Replays streamed texts: the operations, what each let the readers see, and the end, judged.

Owns the story of such a run; the comparison with what the file promised is that of every replay (`replay.py`). Never changes
the file. Imports the text front inside, since no other command needs the tokenizers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from ci.op_words import describe_op
from ci.replay import Replayed
from ci.replay_file import ReplayFile
from ci.timeline import Scene, state_lines
from ci.wording import count

if TYPE_CHECKING:
    from differential.text_world import TextWorld


def replay_texts(file: ReplayFile, until: int | None = None) -> Replayed:
    """Applies the operations again, at most the first `until`, runs to the end and judges every choice. Raises BadInput if the
    world is none."""
    from differential.streamed_text import first_broken
    from differential.text_world import text_world
    from properties.streamed_text import TEXT_SENTENCES

    world = text_world(file.world)
    ops = file.ops if until is None else file.ops[:until]
    texts = ", ".join(f"{name}: {count(len(said), 'token')}" for name, said in _said(file))
    header = f"{count(len(ops), 'operation')} on streamed texts ({texts or 'none'})"
    scenes = []
    for number, op in enumerate(ops, start=1):
        before = _heard(world)
        applies = world.apply(op)
        scenes.append(_scene(number, *describe_op(op), world, before, is_noop=not applies))
    if scenes:
        before = _heard(world)
        world.drain()
        scenes.append(_scene(len(ops) + 1, "drain", "until nothing is left", world, before))
    violation, told = first_broken(world.told()), file.violation.invariant
    if violation is not None:
        scenes[-1] = replace(scenes[-1], violation=violation)
    silence = "" if told in {each.identifier for each in TEXT_SENTENCES} else f"{told} is not judged in streamed texts"
    return Replayed(file, header, tuple(scenes), violation, silence, num_left=len(file.ops) - len(ops))


def _said(file: ReplayFile) -> Iterator[tuple[str, list[int]]]:
    for name, text in file.world.get("texts", {}).items():
        yield from ((f"{name}.{choice}" if choice else name, said) for choice, said in enumerate(text["said"]))


def _heard(world: TextWorld) -> dict[tuple[str, int, int], int]:
    return {key: len(news) for key, news in world.news.items()}


def _scene(
    number: int,
    title: str,
    detail: str,
    world: TextWorld,
    before: dict[tuple[str, int, int], int],
    *,
    is_noop: bool = False,
) -> Scene:
    state = (*_texts(world), *state_lines(world.engine.snapshot()))
    return Scene(number, title, detail, is_noop, tuple(_changes(world, before)), blocks={}, state=state)


def _texts(world: TextWorld) -> Iterator[str]:
    """ "a: of 'x' '#' shown 'x'": the tokens that the engine gave, and what the reader has of them."""
    for told in world.told():
        name = f"{told.request_id}.{told.choice}" if told.choice else told.request_id
        given = " ".join(repr(piece)[1:] for piece in told.pieces) or "nothing"
        yield f"{name}: of {given} shown {''.join(news.text for news in told.news)!r}"


def _changes(world: TextWorld, before: dict[tuple[str, int, int], int]) -> Iterator[str]:
    """ "a: token 3 shows 'é'", "a: stop after 5 tokens"."""
    for key, told in world.news.items():
        name, _life, choice = key
        who = f"{name}.{choice}" if choice else name
        for news in told[before.get(key, 0) :]:
            end = f", ended by {news.reason}" if news.reason is not None else ""
            yield f"{who}: {count(news.num_tokens, 'token')}, shows {news.text!r}{end}"
