"""Compiles a grammar in a process of its own first, which ends when its time or its memory does: so nothing hangs.

Owns: the library's limits, the process and its budget. Never: what a grammar means (`grammar_text.py`), or an output.

The library bounds the work of most steps itself (its "fuel"), but not of all: an integer that is a multiple of 1000003 takes
fourteen seconds, an object of 10000 optional properties twenty-four. This file is also what that process runs; it imports the
standard library and `llguidance`, nothing of this project.
"""

from __future__ import annotations

import json
import math
import os
import pickle
import re
import resource
import select
import signal
import subprocess
import sys
import time
import weakref
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import IO

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

_MOST_SAID = 160  # characters


@dataclass(frozen=True, slots=True)
class Budget:
    """What compiling one grammar may take, its first step included. ``wall_s``: on a machine that is busy with other things."""

    cpu_s: float = 1.0
    wall_s: float = 60.0
    memory_bytes: int = 2**31
    source_characters: int = 2**16


class _Vocabulary:
    """What the library wants of a tokenizer: bytes for each token. It never asks for a text to be cut into tokens, since no
    grammar here forces one."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, texts: Sequence[bytes]) -> None:
        # The end of a text is a token behind the vocabulary: no token of the model has two meanings. 0xFF is in no text.
        self.tokens = [text or b"\xff%d" % token for token, text in enumerate(texts)] + [b"\xffend"]
        self.eos_token_id = len(texts)
        self.special_token_ids = [len(texts)]

    def __call__(self, text: str | bytes) -> list[int]:
        raise AssertionError(f"no text is cut into tokens here, found {text!r}")


def tokenizer_of(texts: Sequence[bytes]) -> LLTokenizer:
    """The tokens of a model by their bytes, and one more that ends a text."""
    return LLTokenizer(_Vocabulary(texts))  # type: ignore[arg-type]  # the stub names a class; it looks at the attributes


def matcher_of(tokenizer: LLTokenizer, text: str) -> LLMatcher:
    """A compiled grammar at its beginning, or one that is in error."""
    limits = LLParserLimits(max_lexer_states=50_000, verbose_errors=False)
    return LLMatcher(tokenizer, text, log_level=0, limits=limits)


def fault_of(tokenizer: LLTokenizer, text: str) -> str | None:
    """Why a grammar can not be compiled, or how its first step fails."""
    matcher = matcher_of(tokenizer, text)
    if not matcher.is_error():
        matcher.compute_bitmask()
    if not matcher.is_error():
        return None
    return _in_short(matcher.get_error())


def _in_short(error: str) -> str:
    """What matters of what the library says: not where, in the words that it was handed, nor these words."""
    if error.startswith("NoExtension"):
        return "no text fits it"
    lines = error.splitlines() or ["it failed"]
    said = next((line.removeprefix("error: ") for line in lines if line.startswith("error: ")), lines[0])
    said = re.sub(r"^at \d+\(\d+\): ", "", said).removeprefix("failed to compile JSON schema: ")
    return said if len(said) <= _MOST_SAID else f"{said[:_MOST_SAID]}…"


def main() -> None:
    """The process: a vocabulary, then grammars, each answered by a line of JSON. Its own clock ends it."""
    cpu_s, memory_bytes = float(sys.argv[1]), int(sys.argv[2])
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    source = sys.stdin.buffer
    tokenizer = tokenizer_of(pickle.load(source))
    while True:
        try:
            text = pickle.load(source)
        except EOFError:
            return
        signal.setitimer(signal.ITIMER_PROF, cpu_s)  # nobody handles its signal, which ends the process
        fault = fault_of(tokenizer, text)
        signal.setitimer(signal.ITIMER_PROF, 0)
        sys.stdout.write(json.dumps(fault) + "\n")
        sys.stdout.flush()


class Trial:
    """The process as its owner sees it: begun when it is needed, and again after it was ended."""

    def __init__(self, texts: Sequence[bytes], budget: Budget) -> None:
        self._texts = list(texts)
        self._budget = budget
        self._process: subprocess.Popen[bytes] | None = None

    def fault_of(self, text: str) -> str | None:
        """Why a grammar can not be compiled within the budget."""
        process = self._process if self._process is not None and self._process.poll() is None else self._begin()
        try:
            _send(process, text)
            line = _line_of(process, self._budget.wall_s)
        except BrokenPipeError:
            line = b""
        if line.endswith(b"\n"):
            fault: str | None = json.loads(line)
            return fault
        process.kill()
        died_of = process.wait()
        self._process = None
        if died_of in (-signal.SIGPROF, -signal.SIGKILL):
            return f"it takes more than {self._budget.cpu_s:g} s"
        return f"it takes more than {self._budget.memory_bytes / 2**30:g} GiB of memory, or is nested too deeply"

    def _begin(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, __file__, str(self._budget.cpu_s), str(self._budget.memory_bytes)]
        environment = {**os.environ, "RAYON_NUM_THREADS": "1"}
        pipe, none = subprocess.PIPE, subprocess.DEVNULL
        process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=none, env=environment)
        weakref.finalize(self, _end, process)
        self._process = process
        with suppress(BrokenPipeError):  # seen when the answer is awaited
            _send(process, self._texts)
        return process

    def close(self) -> None:
        """Ends the process; a later question begins another."""
        if self._process is not None:
            _end(self._process)
            self._process = None


def _send(process: subprocess.Popen[bytes], value: object) -> None:
    assert process.stdin is not None
    pickle.dump(value, process.stdin)
    process.stdin.flush()


def _line_of(process: subprocess.Popen[bytes], wall_s: float) -> bytes:
    """One line, or what came of it until the process ended or its time was up."""
    assert process.stdout is not None
    stdout: IO[bytes] = process.stdout
    ends_at = time.monotonic() + wall_s
    waiting = select.poll()  # takes descriptors of any number, which `select.select` does not
    waiting.register(stdout, select.POLLIN)
    line = b""
    while not line.endswith(b"\n"):
        ready = waiting.poll(math.ceil(max(ends_at - time.monotonic(), 0) * 1000))
        piece = os.read(stdout.fileno(), 4096) if ready else b""
        if not piece:
            break
        line += piece
    return line


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            with suppress(BrokenPipeError):  # for what was not sent
                stream.close()


if __name__ == "__main__":
    main()
