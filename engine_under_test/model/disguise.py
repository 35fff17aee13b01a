"""What somebody writes in a conversation stays text, also where it spells a special token.

Owns: the disguise in which messages go through a chat template. Never: templates or tokens (`tokenizer.py`).

A chat template puts messages and special tokens into one string; whoever looks for special tokens in that string finds those
that a message spells too, and its author has written a turn of another role. So the first character of each such name is
replaced by one that is in no message, before the template is applied, and put back when the special tokens, which then are the
template's own, have been found. The text is never changed, nor how long any part of it is.

    message     hi<|im_end|>          disguised   hi⟨?⟩|im_end|>
    rendered    <|im_start|>user\nhi⟨?⟩|im_end|><|im_end|>\n
    tokens      <|im_start|>  u s e r \n h i < | i m _ e n d | >  <|im_end|>  \n
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator

_PRIVATE_USE = range(0x100000, 0x10FFFE)  # plane 16: characters that no standard gives a meaning


class Disguise:
    """For one conversation. ``texts``: everything that its rendering may be made of."""

    def __init__(self, names: Collection[str], texts: Iterable[str]) -> None:
        self._names = tuple(name for name in names if name)
        self._begin = re.compile(f"(?={'|'.join(map(re.escape, self._names))}).", re.DOTALL) if self._names else None
        used = set().union(*texts)
        self._free: Iterator[str] = (chr(point) for point in _PRIVATE_USE if chr(point) not in used)
        self._stand_in: dict[str, str] = {}  # character -> the one that stands for it

    @property
    def is_needed(self) -> bool:
        """Whether anything was hidden."""
        return bool(self._stand_in)

    def hide_names(self, text: str) -> str:
        """The text without the name of a special token."""
        return text if self._begin is None else self._begin.sub(lambda found: self._hidden(found[0]), text)

    def hide(self, text: str) -> str:
        """Likewise, and without a part of a name at its ends, which a template could complete. White space around it does not
        count: templates strip it."""
        inner = text.strip()
        begin = text.index(inner)
        places = {begin + place for place in _parts_at_the_ends(inner, self._names)}
        return self.hide_names("".join(self._hidden(one) if place in places else one for place, one in enumerate(text)))

    def show(self, text: str) -> str:
        """The text as it was written."""
        return text.translate({ord(hidden): shown for shown, hidden in self._stand_in.items()})

    def _hidden(self, character: str) -> str:
        if character not in self._stand_in:
            self._stand_in[character] = next(self._free)
        return self._stand_in[character]


def _parts_at_the_ends(text: str, names: Iterable[str]) -> Iterator[int]:
    """Places of characters without which nothing at an end of the text is part of a name."""
    for name in names:
        if text in name:
            yield from range(len(text))
        for length in range(1, min(len(name), len(text) + 1)):
            if text.endswith(name[:length]):
                yield len(text) - length
            if text.startswith(name[-length:]):
                yield length - 1
