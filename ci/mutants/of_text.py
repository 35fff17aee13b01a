"""Bugs of streamed text: corpus class 10, and detokenizers. Data only."""

from __future__ import annotations

from ci.mutants.mutant import Mutant

_TEXT = "engine_under_test/text.py"
_TOKENIZER = "engine_under_test/model/tokenizer.py"
_HUNTS = ("streamed-text",)

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "half-characters-shown",
        "exo 1691",
        "https://github.com/exo-explore/exo/pull/1691",
        _TOKENIZER,
        "        text = self._decoder.decode(self._tokenizer.bytes_of(token, with_special=self._with_special))",
        '        text = self._tokenizer.bytes_of(token, with_special=self._with_special).decode(errors="replace")',
        "Each token is decoded on its own, so that a character over two tokens becomes two unreadable ones.",
        _HUNTS,
    ),
    Mutant(
        "half-character-lost-at-the-end",
        "lucebox 641",
        "https://github.com/Luce-Org/lucebox/pull/641",
        _TOKENIZER,
        '        rest = self._decoder.decode(b"", final=True)\n',
        '        rest = ""\n',
        "Bytes that were held back for the rest of their character are dropped when no token follows.",
        _HUNTS,
    ),
    Mutant(
        "stop-prefix-shown",
        "vllm-stream-emits-stop-prefix",
        "https://github.com/vllm-project/vllm/issues/3574",
        _TEXT,
        "        shown = len(known) - max((_overlap(known, stop) for stop in self._stops), default=0)\n        self._held = known[shown:]",
        '        shown = len(known)\n        self._held = ""',
        "The begin of a stop string is shown before the rest of it comes.",
        _HUNTS,
    ),
    Mutant(
        "held-back-text-lost",
        "minisgl-last-token-dropped-on-finish",
        "https://github.com/sgl-project/mini-sglang/pull/62",
        _TEXT,
        '        return "".join((*shown, self.stops.end())), reason',
        '        return "".join(shown), reason',
        "What was held back as the begin of a stop string is not shown when the text ends without it.",
        _HUNTS,
    ),
    Mutant(
        "last-token-without-text",
        "minisgl-last-token-dropped-on-finish",
        "https://github.com/sgl-project/mini-sglang/pull/62",
        _TEXT,
        "        ends_by_token = reason is FinishReason.STOP and bool(tokens) and tokens[-1] in self.stop_ids",
        "        ends_by_token = reason is not None and bool(tokens)",
        "The last token's text is dropped however the text ends, not for a stop token only.",
        _HUNTS,
    ),
    Mutant(
        "last-text-shown-twice",
        "lmd-dup-output-mp",
        "https://github.com/InternLM/lmdeploy/pull/4833",
        _TEXT,
        '        return "".join((*shown, self.stops.end())), reason',
        '        return "".join((*shown, *shown[:1], self.stops.end())), reason',
        "The end of a text brings its last part once more.",
        _HUNTS,
    ),
    Mutant(
        "abort-behind-its-own-cleanup",
        "sgl-disconnect-orphan",
        "https://github.com/sgl-project/sglang/issues/36333",
        _TEXT,
        "        return self._engine.abort(request_id)",
        "        for key in [key for key in self._choices if key[0] == request_id]:\n            del self._choices[key]\n        return True",
        "An abort forgets the request in front of the engine, and so finds nothing to abort in it.",
        _HUNTS,
    ),
)
