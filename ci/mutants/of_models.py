"""Bugs of loaders, tokenizers and chats of models other than the published one. Data only."""

from __future__ import annotations

from ci.mutants.mutant import Mutant

_SAFETENSORS = "engine_under_test/model/safetensors_file.py"
_TOKENIZER = "engine_under_test/model/tokenizer.py"
_FILES = "engine_under_test/model/tokenizer_files.py"
_HUNTS = ("made-models",)

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "theta-of-older-files-alone",
        "sglang 14745",
        "https://github.com/sgl-project/sglang/pull/14745",
        _SAFETENSORS,
        '    theta = parameters.get("rope_theta", data.get("rope_theta", 10000.0))',
        '    theta = data.get("rope_theta", 10000.0)',
        "The base of rotary positions is looked for where older files have it, and is 10,000 for newer ones.",
        _HUNTS,
    ),
    Mutant(
        "first-end-alone",
        "mlx-vlm 309",
        "https://github.com/Blaizzy/mlx-vlm/pull/309",
        _FILES,
        "    stop = tuple(ends) if isinstance(ends, list)",
        "    stop = tuple(ends[:1]) if isinstance(ends, list)",
        "Of the ends that a model declares the first one alone ends an answer.",
        _HUNTS,
    ),
    Mutant(
        "begin-twice-in-a-chat",
        "vllm 27515",
        "https://github.com/vllm-project/vllm/pull/27515",
        _TOKENIZER,
        "if disguise.is_needed else self.encode(rendered, with_special=False)",
        "if disguise.is_needed else self.encode(rendered)",
        "A chat begins with the token of the begin twice: the template says it, and the tokenizer adds it.",
        _HUNTS,
    ),
    Mutant(
        "halves-of-names-meet",
        "transformers 29279",
        "https://github.com/huggingface/transformers/issues/29279",
        "engine_under_test/model/disguise.py",
        "        places = {begin + place for place in _parts_at_the_ends(inner, self._names)}",
        "        places = {begin + len(text)}",
        "Two messages, each with the half of a special token's name, make that token where a template joins them.",
        _HUNTS,
    ),
)
