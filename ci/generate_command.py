"""`assay generate`: the model's own words on the terminal.

Owns: flags, what is printed where, and the end by Ctrl-C. Never: how text comes about (`generate.py`).
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ci.ending import heed
from engine_under_test.errors import BadInput

if TYPE_CHECKING:
    from ci.generate import Generated
    from engine_under_test.text import TextDelta
    from engine_under_test.types import SamplingParams

_INTERRUPTED = 130
_ALL = 2**32 - 1  # more than any vocabulary
_DRAFT_WIDTH = 4
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
@click.option("--min-tokens", type=int, default=0, show_default=True, metavar="N", help="At least so many tokens.")
@click.option(
    "--repetition-penalty",
    type=float,
    default=1.0,
    show_default=True,
    metavar="R",
    help="Divides what was seen; 1: off.",
)
@click.option(
    "--presence-penalty", type=float, default=0.0, show_default=True, metavar="X", help="Taken off each token said before."
)
@click.option(
    "--frequency-penalty", type=float, default=0.0, show_default=True, metavar="X", help="The same, for each time it was said."
)
@click.option("--logit-bias", multiple=True, metavar="TOKEN:B", help="Add B to the logit of a token (may be repeated).")
@click.option("--allowed-tokens", default="", metavar="T,T,...", help="Say these tokens only.  [all]")
@click.option("--json-schema", metavar="FILE|TEXT", help="Say JSON, on one line, that fits this schema.")
@click.option("--regex", metavar="TEXT", help="Say what this regular expression matches as a whole.")
@click.option("--choice", multiple=True, metavar="TEXT", help="Say one of the choices (may be repeated).")
@click.option("--bad-words", multiple=True, metavar="TEXT", help="Never say the tokens of this text (may be repeated).")
@click.option("--logprobs", metavar="N", help="Tell the log-probability of each token and of the N best (all: of every one).")
@click.option(
    "--processed-logprobs", is_flag=True, help="Of what is drawn from, behind every step, not of the model's own logits."
)
@click.option("--seed", default="0", show_default=True, metavar="N", help="Decimal or 0x...: the same seed, the same text.")
@click.option("--stop", multiple=True, metavar="TEXT", help="End in front of this text (may be repeated).")
@click.option("--n", type=int, default=1, show_default=True, metavar="N", help=f"So many answers, up to {_MOST_ANSWERS}.")
@click.option("--model", "name", default="smollm2", show_default=True, metavar="NAME", help="smollm2, tiny, or a path.")
@click.option("--draft", metavar="NAME", help="Guess ahead: lookup (from the text so far), or a smaller model's name or path.")
@click.option("--adapter", metavar="FOLDER", help="A LoRA adapter for this model, as PEFT saves it.")
@click.option("--draft-width", type=int, metavar="N", help="So many tokens ahead, from 1 to 16, with --draft.  [4]")
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
    min_tokens: int,
    repetition_penalty: float,
    presence_penalty: float,
    frequency_penalty: float,
    logit_bias: tuple[str, ...],
    allowed_tokens: str,
    json_schema: str | None,
    regex: str | None,
    choice: tuple[str, ...],
    bad_words: tuple[str, ...],
    logprobs: str | None,
    processed_logprobs: bool,
    seed: str,
    stop: tuple[str, ...],
    n: int,
    name: str,
    draft: str | None,
    draft_width: int | None,
    adapter: str | None,
    threads: int | None,
    as_json: bool,
    **fallbacks: bool,
) -> None:
    """Let the model continue PROMPT, or answer it (--chat), and stream what it says."""
    from ci.ending import in_words, interrupts_heeded, raise_on_sigterm
    from ci.environment import require_extra
    from ci.grammar_flags import grammar_of
    from engine_under_test.types import LogprobsMode, SamplingParams

    require_extra("model", "a language model")
    if json_schema is not None or regex is not None or choice:
        require_extra("grammar", "an answer with a grammar")
    raise_on_sigterm()
    sampling = SamplingParams(
        max_tokens=max_tokens,
        min_tokens=min_tokens,
        temperature=temperature,
        seed=_seed(seed),
        n=n,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        allowed_token_ids=_allowed(allowed_tokens),
        grammar=grammar_of(json_schema, regex, choice),
        logit_bias=tuple(map(_bias, logit_bias)),
        repetition_penalty=repetition_penalty,
        frequency_penalty=frequency_penalty,
        presence_penalty=presence_penalty,
        logprobs=_count(logprobs),
        logprobs_mode=LogprobsMode.PROCESSED if processed_logprobs else LogprobsMode.RAW,
    )
    if processed_logprobs and logprobs is None:
        raise click.UsageError("--processed-logprobs says of which distribution, found no --logprobs; add --logprobs N")
    if "" in bad_words:
        raise click.UsageError("--bad-words are of at least one character, found ''; leave it away")
    if fallbacks["eager"] and fallbacks["batch_invariant"]:
        raise click.UsageError("--batch-invariant has an attention of its own, found --eager too; leave one of them away")
    refuse_names(draft, draft_width, adapter)
    refuse_before_loading(sampling, stop, name, is_empty=not prompt and not is_chat)
    printer = Printer(n, as_json)
    click.echo(f"loading {name} …", err=True)
    try:
        from ci.generate import Fallbacks, Speaker, Task, open_model, set_threads

        set_threads(threads)
        width = _DRAFT_WIDTH if draft_width is None else draft_width
        task = Task(prompt, sampling, stop, is_chat, bad_words, Fallbacks(**fallbacks), draft, width, adapter)
        with interrupts_heeded():
            model = open_model(name)
            speaker = Speaker(model, task)
        click.echo(f"{model.title} · {speaker.description}", err=True)
        with interrupts_heeded():
            generated = speaker.speak(printer.show)
        printer.close()
        if as_json:
            about = {"schema": 1, "model": model.title, "backend": speaker.description}
            written(json.dumps(about | generated.to_json(), ensure_ascii=False) + "\n")
    except KeyboardInterrupt as end:
        printer.break_line()
        click.echo(f"assay: {in_words(end)} after {printer.num_tokens} tokens", err=True)
        sys.exit(_INTERRUPTED)
    if not as_json:
        for line in generated.told_lines():
            click.echo(line, err=True)
    click.echo(closing_line(generated), err=True)
    if sampling.grammar is not None and (cut := what_cuts(generated, stop)):
        click.echo(f"an answer that {cut} need not be a whole text of its grammar", err=True)


def what_cuts(generated: Generated, stop: tuple[str, ...]) -> str:
    """What ends an answer wherever its grammar is, and may have ended one of these; "" if nothing."""
    reasons = {choice.finish_reason.value for choice in generated.choices}
    cuts = (("length", "--max-tokens cut", True), ("stop", "--stop cut", bool(stop)))
    return " or ".join(words for reason, words, can_cut in cuts if can_cut and reason in reasons)


def refuse_names(draft: str | None, draft_width: int | None, adapter: str | None) -> None:
    """Raises BadInput for drafts and adapters that name nothing that there is."""
    if adapter is not None and not adapter.strip():
        raise BadInput("--adapter must name the folder of an adapter, found nothing; name one, or leave it away")
    if draft is None:
        if draft_width is not None:
            raise BadInput("--draft-width says how far ahead is guessed, found no --draft; add for example --draft lookup")
        return
    from ci.draft_flags import LOOKUP, refuse_width
    from ci.generate import TINY
    from engine_under_test.model.fetch import SMOLLM2

    if draft_width is not None:
        refuse_width(draft_width)
    names = (LOOKUP, TINY, SMOLLM2.name)
    if draft not in names and not (draft.strip() and Path(draft).exists()):
        found = f"{draft!r}, and there is no such file or folder" if draft.strip() else "nothing"
        raise BadInput(f"--draft must be {', '.join(names)}, or the path of a model, found {found}; name one of these")


def refuse_before_loading(sampling: SamplingParams, stop: tuple[str, ...], name: str, *, is_empty: bool) -> None:
    """Raises BadInput for what no model could answer: loading one takes seconds. The rules are those of the engine's door."""
    from engine_under_test.config import EngineConfig
    from engine_under_test.scheduling.door import refusal_at_the_door
    from engine_under_test.types import Request

    if not name.strip():
        raise BadInput("--model must be smollm2, tiny, or a path, found nothing; leave it away for smollm2")
    if not 1 <= sampling.n <= _MOST_ANSWERS:
        raise BadInput(f"--n must be from 1 to {_MOST_ANSWERS}, found {sampling.n}; correct it")
    if "" in stop:
        raise BadInput("stop strings are of at least one character, found ''; leave it away")
    tokens = () if is_empty else (0,)
    grammars = None
    if sampling.grammar is not None:
        from engine_under_test.sampling.grammar import CompiledGrammars

        grammars = CompiledGrammars([bytes([byte]) for byte in range(256)])
        sampling = replace(sampling, stop_token_ids=(0,))
    # Length and tokens are judged when the model is known.
    room = EngineConfig(num_blocks=max(sampling.max_tokens, 1), max_num_seqs=_MOST_ANSWERS, vocab_size=_ALL)
    if refusal := refusal_at_the_door(Request("asked", tokens, sampling), room, now=0.0, grammars=grammars):
        raise BadInput(refusal[1])
    if grammars is not None:
        grammars.close()


def _count(text: str | None) -> int | None:
    if text is None or text == "all":
        return None if text is None else _ALL
    if not text.isdecimal():
        raise click.UsageError(f"--logprobs is an integer of at least 0, or all, found {text!r}; say for example --logprobs 5")
    return int(text)


def _allowed(text: str) -> tuple[int, ...]:
    numbers = text.split(",") if text else []
    if not all(number.strip().isdecimal() for number in numbers):
        raise click.UsageError(
            f"--allowed-tokens are numbers of tokens with commas between them, found {text!r}; say for example 11,42"
        )
    return tuple(map(int, numbers))


def _bias(text: str) -> tuple[int, float]:
    token, colon, amount = text.partition(":")
    try:
        if colon and token.isdecimal():
            return int(token), float(amount)
    except ValueError:
        pass
    raise click.UsageError(
        f"--logit-bias is the number of a token, a colon and a number, found {text!r}; say --logit-bias 42:-5"
    )


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
        heed()
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
        f"after {generated.first_s:.2f} s (prompt of {generated.num_prompt_tokens} tokens){_told_of(generated)}; "
        f"ended by {ends}"
    )


def _told_of(generated: Generated) -> str:
    drafts = generated.drafts
    return "" if drafts is None else f"; {drafts.accepted} of {drafts.proposed} drafts stood"
