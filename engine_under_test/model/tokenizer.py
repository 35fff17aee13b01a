"""Text to tokens and back, chats to tokens, and text that arrives token by token.

Owns: what a tokenizer promises (`Tokenizer`, `TokenStream`). Never: how one is understood from files (`tokenizer_files.py`).

The vocabularies are byte-level: every token stands for bytes, so that a character may be spread over several tokens and a
sequence of tokens need not be UTF-8. What is not becomes U+FFFD, once for each maximal ill-formed part (Unicode 3.9, D93b).
"""

from __future__ import annotations

import codecs
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, NoReturn

import tokenizers
from jinja2 import TemplateError
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from engine_under_test.errors import BadInput
from engine_under_test.model.disguise import Disguise


@dataclass(frozen=True, slots=True)
class Special:
    """The tokens with a role, as text; None where a model has none. ``stop``: tokens that end an answer."""

    bos: str | None = None
    eos: str | None = None
    unk: str | None = None
    pad: str | None = None
    stop: tuple[int, ...] = ()


class Tokenizer:
    """A byte-level vocabulary with its merges, its special tokens and its chat template."""

    def __init__(self, backend: tokenizers.Tokenizer, special: Special, chat_template: str | None = None) -> None:
        self.backend = backend
        self.special = special
        self.chat_template = chat_template
        added = backend.get_added_tokens_decoder()
        self._special_ids = frozenset(token for token, described in added.items() if described.special)
        self._names = {token: described.content for token, described in added.items()}
        self._vocab_size = backend.get_vocab_size(with_added_tokens=True)

    @property
    def vocab_size(self) -> int:
        """Tokens are 0 .. vocab_size - 1."""
        return self._vocab_size

    @property
    def stop_token_ids(self) -> tuple[int, ...]:
        """Tokens that end an answer, as the model declares them."""
        return self.special.stop

    def encode(self, text: str, *, with_special: bool = True) -> tuple[int, ...]:
        """Tokens of a text. `with_special`: with the begin token in front, where the model wants one.

        A special token that is spelled out in the text becomes that token.
        """
        return tuple(self.backend.encode(_as_unicode(text), add_special_tokens=with_special).ids)

    def decode(self, ids: Sequence[int], *, with_special: bool = True) -> str:
        """The text of tokens. `with_special`: with the names of special tokens."""
        return b"".join(self.bytes_of(token, with_special=with_special) for token in ids).decode("utf-8", "replace")

    def render(self, messages: Sequence[Mapping[str, str]], *, add_generation_prompt: bool = True) -> str:
        """The text that the model's chat template makes of messages, each with a `role` and a `content`. It does not tell what
        a message spells from what the template says: `chat` does."""
        if self.chat_template is None:
            raise BadInput("a chat needs a model with a chat template, but this one has none; give it plain text")
        if not messages:
            raise BadInput("a chat must have a message to answer, found none; give at least one")
        for message in messages:
            if not all(isinstance(message.get(key), str) for key in ("role", "content")):
                raise BadInput(f"a message must have a role and a content that are text, found {dict(message)!r}; correct it")
        try:
            text: str = _template(self.chat_template).render(
                messages=[dict(message) for message in messages],
                add_generation_prompt=add_generation_prompt,
                tools=None,
                documents=None,
                **self._named_special(),
            )
        except Exception as error:  # a template is a program out of the model's file: it may raise anything
            raise BadInput(f"the model's chat template must accept the messages, but it says {error}; change them") from error
        return text

    def chat(self, messages: Sequence[Mapping[str, str]], add_generation_prompt: bool = True) -> tuple[int, ...]:
        """Tokens of a chat; with `add_generation_prompt`, up to where the answer begins.

        Special tokens come from the template alone: one that a message spells is text, so that nobody writes a turn of another
        role into it. `transformers` and vLLM make that token of it (https://github.com/huggingface/transformers/issues/29279);
        for messages that spell none the tokens are theirs. Tokens that a user of the vocabulary defined are text for both.
        """
        texts = [text for message in messages for text in message.values() if isinstance(text, str)]
        disguise = Disguise([self._names[token] for token in self._special_ids], [*texts, self.chat_template or ""])
        disguised = [
            {
                key: text if not isinstance(text, str) else disguise.hide_names(text) if key == "role" else disguise.hide(text)
                for key, text in message.items()
            }
            for message in messages
        ]
        rendered = self.render(disguised, add_generation_prompt=add_generation_prompt)
        return self._encode_disguised(rendered, disguise) if disguise.is_needed else self.encode(rendered, with_special=False)

    def _encode_disguised(self, text: str, disguise: Disguise) -> tuple[int, ...]:
        found = self.backend.encode(_as_unicode(text), add_special_tokens=False)
        tokens: list[int] = []
        begin = 0
        for token, (first, last) in zip(found.ids, found.offsets, strict=True):
            if token in self._special_ids:
                tokens += [*self._encode_plain(disguise.show(text[begin:first])), token]
                begin = last
        return (*tokens, *self._encode_plain(disguise.show(text[begin:])))

    def _encode_plain(self, text: str) -> list[int]:
        """Tokens of a text in which no special token is looked for."""
        tokens: list[int] = self._plain.encode(text, add_special_tokens=False).ids
        if special := self._special_ids.intersection(tokens):  # a vocabulary may take a whole word without its merges
            name = self._names[min(special)]
            raise BadInput(
                f"a message must not consist of the word {name!r}, which is a special token here; write it otherwise"
            )
        return tokens

    @cached_property
    def _plain(self) -> tokenizers.Tokenizer:
        """A copy, since what it looks for is a setting of a tokenizer and not of a call."""
        plain = tokenizers.Tokenizer.from_str(self.backend.to_str())
        plain.encode_special_tokens = True
        return plain

    def stream(self, *, with_special: bool = True) -> TokenStream:
        """Text of tokens that arrive one by one: all pushes and the end together are `decode` of all of them."""
        return TokenStream(self, with_special=with_special)

    def bytes_of(self, token: int, *, with_special: bool = True) -> bytes:
        """What one token stands for. An added one, special or not, stands for its name, also where its characters spell bytes.

        There the libraries differ: they read `<é>` as the three bytes that these characters spell, which is no UTF-8
        (https://github.com/huggingface/tokenizers/issues/1392), though they make this token of the text `<é>`.
        """
        self._check((token,))
        if token in self._special_ids and not with_special:
            return b""
        name = self._names.get(token)
        return _bytes_of(self.backend.id_to_token(token) or "") if name is None else name.encode()

    def _check(self, ids: Sequence[int]) -> None:
        for token in ids:
            if not 0 <= token < self._vocab_size:
                raise BadInput(f"a token must be from 0 to {self._vocab_size - 1}, found {token}; use this model's own tokens")

    def _named_special(self) -> dict[str, str]:
        named = {"bos_token": self.special.bos, "eos_token": self.special.eos}
        named |= {"unk_token": self.special.unk, "pad_token": self.special.pad}
        return {name: text for name, text in named.items() if text is not None}


class TokenStream:
    """Text as it becomes certain. Bytes that may be the begin of a character are held back until it is whole or broken."""

    __slots__ = ("_decoder", "_tokenizer", "_with_special")

    def __init__(self, tokenizer: Tokenizer, *, with_special: bool) -> None:
        self._tokenizer = tokenizer
        self._with_special = with_special
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token: int) -> str:
        """The text that this token makes certain; it never changes later. Often empty within a character."""
        text = self._decoder.decode(self._tokenizer.bytes_of(token, with_special=self._with_special))
        held = self._decoder.getstate()[0]
        if held[:1] == b"\xed" and held[1:2] >= b"\xa0":  # half a surrogate pair: broken, yet Python waits for the third byte
            text += self._decoder.decode(b"", final=True)
        return text

    def end(self) -> str:
        """What was held back, replaced by U+FFFD; the stream then is as new."""
        rest = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return rest


def load_tokenizer(path: Path) -> Tokenizer:
    """The tokenizer of a GGUF file, or of a folder with tokenizer.json (or a single GGUF file) in it."""
    from engine_under_test.model.tokenizer_files import from_path  # which knows this file

    return from_path(path)


def byte_alphabet() -> dict[str, int]:
    """Printable character -> byte, as byte-level vocabularies spell bytes (Radford et al. 2019, the code of GPT-2).

    The printable bytes of Latin-1 stand for themselves; the others, in order, are the characters from U+0100 on.
    """
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(0x100) if byte not in set(plain)]
    return {chr(byte): byte for byte in plain} | {chr(0x100 + place): byte for place, byte in enumerate(others)}


_BYTES = byte_alphabet()


def _bytes_of(spelled: str) -> bytes:
    """Where a character is not of the alphabet, the token is text as it stands there."""
    values = [_BYTES.get(character) for character in spelled]
    known = [value for value in values if value is not None]
    return bytes(known) if len(known) == len(values) else spelled.encode()


def _as_unicode(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise BadInput(
            f"a text must be Unicode, found half a surrogate pair {text[error.start]!r} at character {error.start}; remove it"
        ) from error
    return text


@lru_cache(maxsize=16)
def _template(source: str) -> Any:
    """Compiled in a sandbox: a template comes with a model file, and is not trusted. The time of day is not handed in."""
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    environment.globals["raise_exception"] = _refuse
    try:
        return environment.from_string(source)
    except TemplateError as error:
        raise BadInput(
            f"the model's chat template must be a Jinja template, but it is not ({error}); use another model"
        ) from error


def _refuse(message: str) -> NoReturn:
    raise TemplateError(message)
