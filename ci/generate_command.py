"""`assay generate`: the model's own words on the terminal.

Owns: flags, what is printed where, and the end by Ctrl-C. Never: how text comes about (`generate.py`).
"""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING

import click

from engine_under_test.errors import BadInput

if TYPE_CHECKING:
    from ci.generate import Generated
    from engine_under_test.text import TextDelta
    from engine_under_test.types import SamplingParams

_INTERRUPTED = 130
_MOST_ANSWERS = 64  # what an engine runs at a time if it is told nothing
_MOST_THREADS = max(64, 4 * (os.cpu_count() or 1))  # torch crashes on as many threads as the system can not start


@click.command(short_help="Let the model continue a text, or answer.")
@click.argument("prompt")
@click.option("--chat", "is_chat", is_flag=True, help="PROMPT is said by a user; the model answers.")
@click.option("--max-tokens", type=int, default=128, show_default=True, metavar="N", help="At most so many tokens.")
@click.option(
    "--temperature", type=float, default=0.0, show_default=True, metavar="T", help="0 takes the best token each time."
)
@click.option("--top-k", type=int, default=0, show_default=True, metavar="K", help="Draw among the K best; 0: all.")
@click.option("--top-p", type=float, default=1.0, show_default=True, metavar="P", help="Draw among the best that make up P.")
@click.option(
    "--min-p", type=float, default=0.0, show_default=True, metavar="P", help="Drop what is less than P times the best."
)
@click.option("--seed", default="0", show_default=True, metavar="N", help="Decimal or 0x...: the same seed, the same text.")
@click.option("--stop", multiple=True, metavar="TEXT", help="End in front of this text (may be repeated).")
@click.option("--n", type=int, default=1, show_default=True, metavar="N", help=f"So many answers, up to {_MOST_ANSWERS}.")
@click.option("--model", "name", default="smollm2", show_default=True, metavar="NAME", help="smollm2, tiny, or a path.")
@click.option("--threads", type=click.IntRange(1, _MOST_THREADS), metavar="N", help="Cores to use.  [what torch takes]")
@click.option("--eager", is_flag=True, help="Fallback: attention row by row.")
@click.option("--batch-invariant", is_flag=True, help="Fallback: logits bitwise the same whatever shares the batch.")
@click.option("--no-prefix-cache", is_flag=True, help="Fallback: nothing computed before is used again.")
@click.option("--no-batching", is_flag=True, help="Fallback: one answer a step.")
@click.option("--no-chunking", is_flag=True, help="Fallback: prompts whole, never in chunks.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON on standard output, everything else on standard error.")
def generate(
    *,
    prompt: str,
    is_chat: bool,
    max_tokens: int,
    temperature: float,
    top_k: int,
    top_p: float,
    min_p: float,
    seed: str,
    stop: tuple[str, ...],
    n: int,
    name: str,
    threads: int | None,
    as_json: bool,
    **fallbacks: bool,
) -> None:
    """Let the model continue PROMPT, or answer it (--chat), and stream what it says."""
    from ci.ending import in_words, raise_on_sigterm
    from ci.environment import require_extra
    from engine_under_test.types import SamplingParams

    require_extra("model", "a language model")
    raise_on_sigterm()
    sampling = SamplingParams(
        max_tokens=max_tokens, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, seed=_seed(seed), n=n
    )
    if fallbacks["eager"] and fallbacks["batch_invariant"]:
        raise click.UsageError("--batch-invariant has an attention of its own, found --eager too; leave one of them away")
    refuse_before_loading(sampling, stop, name, is_empty=not prompt and not is_chat)
    printer = Printer(n, as_json)
    click.echo(f"loading {name} …", err=True)
    try:
        from ci.generate import Fallbacks, Speaker, Task, open_model, set_threads

        set_threads(threads)
        model = open_model(name)
        speaker = Speaker(model, Task(prompt, sampling, stop, is_chat, Fallbacks(**fallbacks)))
        click.echo(f"{model.title} · {speaker.description}", err=True)
        generated = speaker.speak(printer.show)
        printer.close()
        if as_json:
            about = {"schema": 1, "model": model.title, "backend": speaker.description}
            written(json.dumps(about | generated.to_json(), ensure_ascii=False) + "\n")
    except KeyboardInterrupt as end:
        printer.break_line()
        click.echo(f"assay: {in_words(end)} after {printer.num_tokens} tokens", err=True)
        sys.exit(_INTERRUPTED)
    click.echo(closing_line(generated), err=True)


def refuse_before_loading(sampling: SamplingParams, stop: tuple[str, ...], name: str, *, is_empty: bool) -> None:
    """Raises BadInput for what no model could answer: loading one takes seconds. The rules are those of the engine's door."""
    from engine_under_test.config import EngineConfig
    from engine_under_test.scheduling.admission import refusal_at_the_door
    from engine_under_test.types import Request

    if not name.strip():
        raise BadInput("--model must be smollm2, tiny, or a path, found nothing; leave it away for smollm2")
    if not 1 <= sampling.n <= _MOST_ANSWERS:
        raise BadInput(f"--n must be from 1 to {_MOST_ANSWERS}, found {sampling.n}; correct it")
    if "" in stop:
        raise BadInput("stop strings are of at least one character, found ''; leave it away")
    tokens = () if is_empty else (0,)
    room = EngineConfig(num_blocks=max(sampling.max_tokens, 1), max_num_seqs=_MOST_ANSWERS)  # the length is judged later
    if refusal := refusal_at_the_door(Request("asked", tokens, sampling), room, now=0.0):
        raise BadInput(refusal[1])


def _seed(text: str) -> int:
    from ci.tree import parse_seed

    try:
        return parse_seed(text)
    except BadInput as error:  # its remedy is that of a run on a tree
        raise BadInput(f"{str(error).partition(';')[0]}; say for example --seed 7, or leave it away for 0") from error


def written(text: str) -> None:
    """Puts text on standard output at once; BadInput where that takes none, which a disk may say only at the flush."""
    try:
        click.echo(text, nl=False)
        sys.stdout.flush()
    except BrokenPipeError:
        raise  # a reader that has left is told nothing
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is buffered would fail again at the exit
        raise BadInput(f"standard output must take the text, but does not: {error.strerror}; write it elsewhere") from error


class Printer:
    """Puts text on the terminal as it comes: the first choice at once, the others in turn when those before have ended."""

    def __init__(self, num_choices: int, as_json: bool) -> None:
        self._is_silent = as_json
        self._num_choices = num_choices
        self._waiting: dict[int, list[str]] = {}
        self._ended: set[int] = set()
        self._tokens: dict[int, int] = {}
        self._current = 0
        self._is_open = False  # the line that stands there has no end yet

    @property
    def num_tokens(self) -> int:
        return sum(self._tokens.values())

    def show(self, delta: TextDelta) -> None:
        self._tokens[delta.choice] = delta.num_tokens
        self._waiting.setdefault(delta.choice, []).append(delta.text)
        if delta.finish_reason is not None:
            self._ended.add(delta.choice)
        while self._current in self._waiting:
            self._print("".join(self._waiting.pop(self._current)))
            if self._current not in self._ended:
                break
            self.break_line()
            self._current += 1

    def _print(self, text: str) -> None:
        if self._is_silent or not text:
            return
        if self._num_choices > 1 and not self._is_open:
            written(f"[{self._current + 1} of {self._num_choices}] ")
        written(text)
        self._is_open = True

    def break_line(self) -> None:
        if self._is_open:
            self._is_open = False
            written("\n")

    def close(self) -> None:
        self.break_line()


def closing_line(generated: Generated) -> str:
    """What it took: figures as observed."""
    ends = " and ".join(sorted({choice.finish_reason.value for choice in generated.choices}))
    return (
        f"{generated.num_tokens} tokens in {generated.total_s:.2f} s: {generated.tokens_per_s:.1f} tokens a second; first one "
        f"after {generated.first_s:.2f} s (prompt of {generated.num_prompt_tokens} tokens); ended by {ends}"
    )
