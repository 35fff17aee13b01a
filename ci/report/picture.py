"""A failure's timeline as a picture: operations from left to right, blocks from top to bottom, the violation in red.

Owns an inline SVG without script, font or network. Colours come from the page's style sheet, so that light, dark and print
all work.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

_COLUMN, _ROW, _LEFT, _TOP = 34, 20, 66, 22
_MOST_COLUMNS, _MOST_ROWS = 40, 24
_KINDS = ("empty", "cached", "reserved", "owned", "quarantine", "nowhere")


def timeline_svg(replayed: Mapping[str, Any]) -> str:
    """``replayed`` is what `ci.replay.to_json` gives. The last operations and the blocks that moved; "" if there are none."""
    scenes = list(replayed["timeline"])[-_MOST_COLUMNS:]
    rows = _rows(scenes)
    if not scenes or not rows:
        return ""
    width, height = _LEFT + _COLUMN * len(scenes) + 8, _TOP + _ROW * len(rows) + 8
    label = escape(f"{len(scenes)} operations, {len(rows)} blocks; {replayed['closing']}", quote=True)
    size = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    parts = [f'<svg class="timeline" {size} role="img" aria-label="{label}">']
    parts += [_text(_LEFT + _COLUMN * (place + 0.5), 14, scene["op"], "mid") for place, scene in enumerate(scenes)]
    for line, block in enumerate(rows):
        y = _TOP + _ROW * line
        parts.append(_text(4, y + 14, f"block {block}", "side"))
        parts += [
            _cell(_LEFT + _COLUMN * place, y, scene["blocks"].get(block, "gone"), scene["op"])
            for place, scene in enumerate(scenes)
        ]
    if scenes[-1]["violation"]:
        x = _LEFT + _COLUMN * (len(scenes) - 1)
        parts.append(f'<rect class="broken" x="{x}" y="{_TOP - 2}" width="{_COLUMN - 2}" height="{_ROW * len(rows) + 2}"/>')
    return "".join([*parts, "</svg>"])


def _rows(scenes: Sequence[Mapping[str, Any]]) -> list[str]:
    """Blocks that were ever anything but empty, or that changed; the busiest if there are too many."""
    changes: dict[str, int] = {}
    for earlier, later in zip([{"blocks": {}}, *scenes], scenes, strict=False):
        for block, state in later["blocks"].items():
            if state != earlier["blocks"].get(block, "empty"):
                changes[block] = changes.get(block, 0) + 1
    busiest = sorted(changes, key=lambda block: (-changes[block], int(block)))[:_MOST_ROWS]
    return sorted(busiest, key=int)


def _cell(x: int, y: int, state: str, op: int) -> str:
    kinds = [kind for kind in _KINDS if kind in state]
    kind = "twice" if "+" in state else kinds[0] if kinds else "gone"
    inner = state[state.find("(") + 1 : state.find(")")] if "(" in state else ""
    title = f"<title>after operation {op}: {escape(state)}</title>"
    box = f'<rect class="s-{kind}" x="{x}" y="{y}" width="{_COLUMN - 2}" height="{_ROW - 2}" rx="2">{title}</rect>'
    return box + (_text(x + _COLUMN / 2 - 1, y + 13, inner[:4], "mid") if inner else "")


def _text(x: float, y: float, text: object, kind: str) -> str:
    return f'<text class="{kind}" x="{x:g}" y="{y:g}">{escape(str(text))}</text>'
