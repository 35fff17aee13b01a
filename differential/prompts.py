"""What the real model is asked: chats, code, prose in several scripts, symbols, and one text of more than 500 tokens.

Owns the texts; all were written for this file.
"""

from __future__ import annotations

from dataclasses import dataclass

_STEPS = (
    "First the keeper walks down to the harbour and looks at the colour of the water.",
    "Grey water means wind from the north before noon, and the small boats stay tied to the wall.",
    "Green water means that the current has turned, and the nets can be laid behind the second buoy.",
    "Then she counts the gulls on the roof of the old cannery, and writes the number into the book.",
    "When there are more than thirty of them, a storm has driven them in from the open sea.",
    "The book lies on a table by the window, next to a brass lamp and a jar of dry ink.",
    "Nobody has ever asked her to keep it, but the fishermen read it every evening.",
    "In the third year a stranger came, copied seven pages, and left without a word.",
    "After that the keeper wrote smaller, and left out the dates.",
)


@dataclass(frozen=True, slots=True)
class Prompt:
    """A text as it stands, or what a user says in a chat."""

    name: str
    text: str
    is_chat: bool = False
    max_tokens: int = 8


PROMPTS = (
    Prompt("chat", "Why does ice float on water? Answer in one sentence.", is_chat=True, max_tokens=12),
    Prompt("chat about numbers", "List the first six prime numbers.", is_chat=True),
    Prompt("code", 'def is_even(n: int) -> bool:\n    """Whether n is even."""\n    return'),
    Prompt("markup", "<ul>\n  <li>one</li>\n  <li>two</li>\n  <li>"),
    Prompt("Chinese and Japanese", "今天天气很好,我们一起去公园。\n明日は雨が降る"),
    Prompt("Cyrillic and Greek", "Вчера мы долго гуляли вдоль реки, а сегодня\nΗ θάλασσα είναι"),
    Prompt("symbols", "🙂 naïve café — ∑ᵢ xᵢ² ≤ 4π;\t\t\ta  b   c\n\n\n"),
    Prompt("one word", "Once"),
    Prompt(
        "long", " ".join(f"Day {day}. {' '.join(_STEPS[day % 9 :] + _STEPS[: day % 9])}" for day in range(1, 4)), max_tokens=6
    ),
)
