"""Tokenizers as files: built from GGUF metadata, written beside converted weights, read again.

Owns: how each file is understood. Never: what a tokenizer does (`tokenizer.py`).

The result is the tokenizer that `transformers` builds from the same file. For the pre-tokenizer named `smollm` this is the
split of GPT-2. The split that this model's makers trained with isolates digits first; the two differ only where two or more
white-space characters, or characters of several bytes that count as numbers, stand at a number.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers, processors

from engine_under_test.errors import BadInput
from engine_under_test.model.gguf_file import GgufFile
from engine_under_test.model.json_file import json_object
from engine_under_test.model.load import gguf_in
from engine_under_test.model.safetensors_file import CONFIG
from engine_under_test.model.tokenizer import Special, Tokenizer, byte_alphabet

TOKENIZER, SETTINGS, GENERATION, TEMPLATE = (
    "tokenizer.json",
    "tokenizer_config.json",
    "generation_config.json",
    "chat_template.jinja",
)
_NORMAL, _CONTROL, _USER_DEFINED = 1, 3, 4  # token types of GGUF
_LLAMA3_SPLIT = (  # Grattafiori et al. 2024; the published tokenizer of Llama 3
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_SPLITS: dict[str, str | None] = {  # None: the split of GPT-2, which the library knows
    "default": None,
    "gpt-2": None,
    "smollm": None,
    "llama-bpe": _LLAMA3_SPLIT,
    "llama3": _LLAMA3_SPLIT,
    "llama-v3": _LLAMA3_SPLIT,
}


def from_path(path: Path) -> Tokenizer:
    """The tokenizer of a GGUF file, or of a folder with tokenizer.json (or a single GGUF file) in it."""
    path = gguf_in(path) or path
    return _from_folder(path) if path.is_dir() else from_gguf(GgufFile(path))


def from_gguf(file: GgufFile) -> Tokenizer:
    """The tokenizer that the metadata describe."""
    if (kind := file.get("tokenizer.ggml.model", str)) != "gpt2":
        raise BadInput(f"a tokenizer must be a byte-level one (gpt2), found {kind!r} in {file.path}; use another model")
    if (split := file.find("tokenizer.ggml.pre", str) or "default") not in _SPLITS:
        raise BadInput(
            f"a pre-tokenizer must be one of {', '.join(_SPLITS)}, found {split!r} in {file.path}; use another model"
        )
    tokens = _texts(file, "tokenizer.ggml.tokens")
    kinds = file.find("tokenizer.ggml.token_type", list) or [_NORMAL] * len(tokens)
    if len(kinds) != len(tokens):
        raise BadInput(f"every token must have a type, found {len(kinds)} for {len(tokens)} in {file.path}; fetch it again")
    backend = _backend(file, tokens, kinds, _SPLITS[split])
    roles = {
        role: _role(file, f"tokenizer.ggml.{key}_token_id", tokens)
        for role, key in {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}.items()
    }
    _add_marked_tokens(backend, tokens, kinds, roles)
    bos = roles["bos"] if file.find("tokenizer.ggml.add_bos_token", bool) else None
    eos = roles["eos"] if file.find("tokenizer.ggml.add_eos_token", bool) else None
    backend.post_processor = processors.TemplateProcessing(
        single=[piece for piece in (bos, "$A", eos) if piece is not None],
        special_tokens=[(token, tokens.index(token)) for token in dict.fromkeys((bos, eos)) if token is not None],
    )
    ends = (file.find(f"tokenizer.ggml.{name}_token_id", int) for name in ("eos", "eot"))
    stop = tuple(dict.fromkeys(token for token in ends if token is not None and token < len(tokens)))
    return Tokenizer(backend, Special(**roles, stop=stop), file.find("tokenizer.chat_template", str))


def save_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    """Writes the files that `load_tokenizer` and `transformers` read. Not atomic: hand in a temporary folder."""
    special = tokenizer.special
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "bos_token": special.bos,
        "eos_token": special.eos,
        "unk_token": special.unk,
        "pad_token": special.pad,
        "chat_template": tokenizer.chat_template,
    }
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.backend.save(str(folder / TOKENIZER))
    _write(folder / SETTINGS, {key: value for key, value in settings.items() if value is not None})
    _write(folder / GENERATION, {"eos_token_id": list(special.stop)})


def _from_folder(folder: Path) -> Tokenizer:
    try:
        backend = tokenizers.Tokenizer.from_file(str(folder / TOKENIZER))
    except Exception as error:  # the library raises nothing narrower
        raise BadInput(
            f"a model folder must hold a {TOKENIZER} that can be read, but {folder} does not ({error}); fetch it again"
        ) from error
    if not isinstance(backend.decoder, decoders.ByteLevel):
        found = type(backend.decoder).__name__
        raise BadInput(f"a tokenizer must be a byte-level one, found the decoder {found} in {folder}; use another model")
    settings = _read(folder / SETTINGS)
    roles = {role: _text_of(settings.get(f"{role}_token")) for role in ("bos", "eos", "unk", "pad")}
    backend.no_truncation()  # what a maker of batches left in the file is no property of a text
    backend.no_padding()
    said = (_read(folder / name).get("eos_token_id") for name in (GENERATION, CONFIG))  # older models have the second alone
    ends = next((end for end in said if end is not None), None)
    if ends is None:
        ends = backend.token_to_id(roles["eos"]) if roles["eos"] is not None else None
    stop = tuple(ends) if isinstance(ends, list) else () if ends is None else (int(ends),)
    return Tokenizer(backend, Special(**roles, stop=stop), _template_of(folder, settings))


def _backend(file: GgufFile, tokens: list[str], kinds: list[int], split: str | None) -> tokenizers.Tokenizer:
    pairs = (merge.partition(" ") for merge in _texts(file, "tokenizer.ggml.merges"))
    merges = [(left, right) for left, _space, right in pairs]
    spelling = {byte: character for character, byte in byte_alphabet().items()}
    plain = set(byte_alphabet())
    vocab = {  # some files spell text as it is, not in the alphabet of bytes
        token if kind != _NORMAL or plain.issuperset(token) else "".join(spelling[byte] for byte in token.encode()): place
        for place, (token, kind) in enumerate(zip(tokens, kinds, strict=True))
    }
    if len(vocab) != len(tokens):
        raise BadInput(f"tokens must be distinct, found {len(tokens) - len(vocab)} twice in {file.path}; fetch it again")
    try:
        backend = tokenizers.Tokenizer(
            models.BPE(vocab=vocab, merges=merges, continuing_subword_prefix="", end_of_word_suffix="")
        )
    except Exception as error:  # the library raises nothing narrower
        raise BadInput(
            f"merges must join two tokens to a third, but in {file.path} they do not ({error}); fetch it again"
        ) from error
    if split is None:
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(
            add_prefix_space=bool(file.find("tokenizer.ggml.add_space_prefix", bool))
        )
    else:
        backend.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Split(Regex(split), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
        )
    backend.decoder = decoders.ByteLevel()
    return backend


def _add_marked_tokens(
    backend: tokenizers.Tokenizer, tokens: list[str], kinds: list[int], roles: dict[str, str | None]
) -> None:
    """Control tokens and tokens with a role are special; tokens that a user defined are matched whole too, but are text."""
    named = set(roles.values())
    marked = list(zip(tokens, kinds, strict=True))
    special = [token for token, kind in marked if kind == _CONTROL or token in named]
    backend.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in special])
    defined = [token for token, kind in marked if kind == _USER_DEFINED and token not in named]
    backend.add_tokens([AddedToken(token, normalized=False, special=False) for token in defined])


def _role(file: GgufFile, key: str, tokens: list[str]) -> str | None:
    place = file.find(key, int)
    if place is None:
        return None
    if place >= len(tokens):
        raise BadInput(f"{key} must be one of {len(tokens)} tokens, found {place} in {file.path}; fetch it again")
    return tokens[place]


def _texts(file: GgufFile, key: str) -> list[str]:
    texts = file.get(key, list)
    if not texts or not all(type(text) is str for text in texts):
        raise BadInput(f"{key} must be a list of texts, found something else in {file.path}; convert the model again")
    return texts


def _template_of(folder: Path, settings: dict[str, Any]) -> str | None:
    if (folder / TEMPLATE).is_file():
        return (folder / TEMPLATE).read_text(encoding="utf-8")
    template = settings.get("chat_template")
    if isinstance(template, list):  # several with names
        template = {named["name"]: named["template"] for named in template}.get("default")
    return template if isinstance(template, str) else None


def _text_of(token: object) -> str | None:
    """A token is its text, or an object with its text as content."""
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else None


def _read(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    return json_object(path, f"{path.name} of a tokenizer must be a file", "fetch it again")


def _write(path: Path, data: dict[str, Any]) -> None:
    path.write_text(json.dumps(data, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
