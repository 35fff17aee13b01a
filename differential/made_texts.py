"""Vocabularies, chat templates and texts of made models, chosen for what a published model need not have.

Owns what is spelled and said. Never: a file (`made_files.py`), or what is right (`made_models.py`).
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from properties.scripted import byte_spelling

Messages = Sequence[Mapping[str, str]]
BOS, EOS, EOT, BEGIN, UNK = "<|endoftext|>", "<|im_end|>", "<|eot|>", "<|im_start|>", "<unk>"
SPECIAL = (BOS, BEGIN, EOS, EOT, UNK, "[INST]", "</s>")
DEFINED = ("<think>", "[tool]")  # matched whole, and yet text
OUTSIDE = "漢字"  # a word that is not spelled in the alphabet of bytes
NORMAL, CONTROL, USER_DEFINED = 1, 3, 4
_MERGES = (
    "h e", "l l", "he ll", "hell o", "Ġ w", "o r", "Ġw or", "l d", "Ġwor ld", "Ġ Ġ", "ĠĠ ĠĠ", "Ġ t", "Ġt he", "1 2", "12 3",
    "3 4", "4 5", "0 0", "00 0", "Ġ 1", "Ġ h", "Ġh e", "Ġ hello", "Ċ Ċ", "' s", "ð Ł", "ðŁ ĺ", "Ã ©", "a n", "i n", "in g",
)  # fmt: skip
TURNS = (  # blocks on lines of their own, indented: none of that white space is meant; the lines between them are
    "{{ bos_token }}{% for message in messages %}\n"
    "    {% if message.role == 'tool' %}\n{{ raise_exception('no tools here') }}\n    {% endif %}\n"
    "<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}\n"
    "{% if add_generation_prompt %}\n<|im_start|>assistant\n{% endif %}\n"
)
TRIMMED = (  # says the begin in front of each turn, and takes white space off
    "{%- for message in messages -%}\n{{ '[INST]' + message.role + ': ' + message.content | trim + eos_token }}\n{%- endfor -%}"
    "{%- if add_generation_prompt %}{{ '[INST]' }}{% endif %}"
)
JOINED = "{% for message in messages %}{{ message.content }}{% endfor %}"  # nothing between two, nothing behind the last
WORDS = (
    "hello", " world", "the ", "Hello, World!", "don't", "it's", "naïve café", "ﬁne ½ Ⅷ", "e\u0301", "👍🏽", "👨‍👩‍👧",
    "漢字かな", "עברית", "\u200b", "\u00a0", " ", "  ", "    ", "\t", "\n", "\n\n", " \n ", "\r\n", "\x00", "\ufffd",
    "1", "12", "123", "1234", "12345", "000000", "3.14159", "2024-12-31", " 123 1", "१२३", "!?", "...",
    "def f(x):\n    return x\n", *DEFINED,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Tokens, the type that GGUF gives each, and pairs that are joined, first ones first."""

    tokens: tuple[str, ...]
    kinds: tuple[int, ...]
    merges: tuple[tuple[str, str], ...]


def vocabulary(seed: int, *, has_outside: bool) -> Vocabulary:
    """Every byte, the merges above, some drawn, and the names. ``has_outside``: with a word that spells no bytes."""
    chance = random.Random(seed)
    merges = [(left, right) for left, _, right in (merge.partition(" ") for merge in _MERGES)]
    merges = [pair for pair in merges if pair != ("Ġ", "hello")] + [("Ġ", "hello")]
    words = [*byte_spelling(), *("".join(pair) for pair in merges)]
    while len(merges) < len(_MERGES) + 24:
        pair = chance.choice(words[33:]), chance.choice("aeiounrst0123")
        if "".join(pair) not in words:
            merges.append(pair)
            words.append("".join(pair))
    if has_outside:
        words.append(OUTSIDE)
    names = [*SPECIAL, *DEFINED]
    chance.shuffle(names)  # some in front of the words, some behind them
    tokens = (*names[:4], *words, *names[4:])
    kinds = {**dict.fromkeys(SPECIAL, CONTROL), **dict.fromkeys(DEFINED, USER_DEFINED)}
    return Vocabulary(tokens, tuple(kinds.get(token, NORMAL) for token in tokens), tuple(merges))


def texts(seed: int, num: int) -> tuple[tuple[str, str], ...]:
    """With a name each: every word, every character of Latin-1, sentences with and without names, one of over 1,024 tokens."""
    chance = random.Random(seed)
    made = [*WORDS, *(f"a{name} b {name}" for name in SPECIAL), "", "".join(map(chr, range(0x100)))]
    for _ in range(num):
        made.append("".join(chance.choice((*WORDS, *SPECIAL)) for _ in range(chance.randint(2, 10))))
        made.append("".join(chr(chance.randrange(0x20, chance.choice((0x7F, 0x7FF, 0xD7FF)))) for _ in range(12)))
    long = " ".join(chance.choice("qxzjkv") * 2 for _ in range(1100))
    return (*((f"text {text[:40]!a}", text) for text in made), (f"a text of {len(long):,} characters", long))


def conversations() -> tuple[Messages, ...]:
    """White space around what is said, lines, several turns; nobody spells a name."""
    said = ("hi", " two\nlines \n", "And  12345?", "don't 👍")
    turns = [{"role": role, "content": text} for role, text in zip(("system", "user", "assistant", "user"), said, strict=True)]
    return (turns, turns[1:], turns[3:], [{"role": "user", "content": "\n\thello\n"}])


def halves() -> tuple[Messages, ...]:
    """A name that one message begins and the next one ends, at each of its places; and one that only begins."""
    found: list[Messages] = []
    for name in SPECIAL:
        for place in range(1, len(name)):
            one, other = f"a {name[:place]}", f"{name[place:]} b"
            found.append([{"role": "user", "content": one}, {"role": "assistant", "content": other}])
        found.append([{"role": "user", "content": f"{name} a {name[:-1]}"}])
    return tuple(found)
