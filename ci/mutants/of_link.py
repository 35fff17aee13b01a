"""Bugs of the engine's end of its link to a remote pool, and of the names that content has there: corpus classes 2 and 8. Data
only."""

from __future__ import annotations

from ci.mutants.mutant import Mutant

_CONTENT = "engine_under_test/distributed/content.py"
_TWINS = ("transfers-in-turn",)

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "remote-key-without-an-offset",
        "vllm-custom-mm-key-ambiguous",
        "https://github.com/vllm-project/vllm/pull/36708",
        _CONTENT,
        "_NUMBER.pack(len(name)) + name + _NUMBER.pack(offset) + _NUMBER.pack(length)",
        "_NUMBER.pack(len(name)) + name + _NUMBER.pack(length)",
        "The name of a block beyond the engine does not say where in it an image lies: equal placeholders find each other's KV.",
        _TWINS,
    ),
    Mutant(
        "remote-key-without-media",
        "lmcache 4183",
        "https://github.com/LMCache/LMCache/pull/4183",
        _CONTENT,
        "    for digest, offset, length in media:\n",
        "    for digest, offset, length in media[:0]:\n",
        "The name of a block beyond the engine is made of its tokens alone: one image's KV is served to who sent another.",
        _TWINS,
    ),
    Mutant(
        "remote-key-without-what-stands-before",
        "ours",
        "",
        _CONTENT,
        '    for piece in (layout, namespace, parent, b"".join(map(_NUMBER.pack, tokens))):\n',
        '    for piece in (layout, namespace, b"".join(map(_NUMBER.pack, tokens))):\n',
        "The name of a block beyond the engine says nothing of the blocks before it: a tail is loaded behind another head.",
        _TWINS,
    ),
    Mutant(
        "remote-key-without-a-namespace",
        "llm-d-kv-cache 47",
        "https://github.com/llm-d/llm-d-kv-cache/issues/47",
        _CONTENT,
        '    for piece in (layout, namespace, parent, b"".join(map(_NUMBER.pack, tokens))):\n',
        '    for piece in (layout, parent, b"".join(map(_NUMBER.pack, tokens))):\n',
        "Beyond the engine tenants, salts and adapters share what they must not.",
        _TWINS,
    ),
)
