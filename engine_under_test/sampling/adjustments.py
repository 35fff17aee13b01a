"""What changes the logits of one row before its temperature, each step a function of its own, as docs/fingerprint.md lays down.

Owns the steps from allowed tokens to penalties, in float64, in place. Never: min_tokens and what comes behind it
(`sampler.py`, `processors.py`), or torch. A step knows the row's `History` and nothing else: no state is kept from token to
token, so preemption, chunks, forks and batch-mates change nothing (SE-2).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from engine_under_test.errors import RunnerError
from engine_under_test.seams import Grammars, LogitsProcessor
from engine_under_test.types import GrammarSpec, History, SamplingParams

Row = npt.NDArray[np.float64]  # [vocabulary]
Processors = Mapping[str, LogitsProcessor]

NO_PROCESSORS: Processors = {}


NO_TOKEN_LEFT = "a token must be left that the grammar allows"


class Stuck(RunnerError):
    """No token can be drawn for a row, for a reason that lies in what its request asks for: nobody else suffers."""


def keep_allowed(row: Row, allowed: Sequence[int]) -> None:
    """Drops every token but these; () drops none."""
    if allowed:
        places = list(allowed)
        kept = row[places]
        row.fill(-np.inf)
        row[places] = kept


def keep_grammatical(
    row: Row, spec: GrammarSpec | None, output: Sequence[int], ends: Sequence[int], grammars: Grammars | None
) -> None:
    """Drops every token that the grammar does not allow behind the output; None drops none."""
    if spec is None:
        return
    if grammars is None:
        raise Stuck("a grammar must be compiled by what was handed to the runner (`Grammars`), found nothing; hand it in")
    try:
        row[~grammars.allowed(spec, output, ends)] = -np.inf
    except RunnerError as error:
        raise Stuck(str(error)) from error


def banned_by(bad_words: Sequence[Sequence[int]], output: Sequence[int]) -> list[int]:
    """The tokens with which the output would end in a bad word: the last of each whose others stand at its end."""
    banned = []
    for word in bad_words:
        start = len(output) - len(word) + 1  # of the output's part of it
        if start >= 0 and tuple(output[start:]) == tuple(word[:-1]):
            banned.append(word[-1])
    return banned


def drop_bad_words(row: Row, bad_words: Sequence[Sequence[int]], output: Sequence[int]) -> None:
    """Drops the tokens that would complete a bad word."""
    if banned := banned_by(bad_words, output):
        row[banned] = -np.inf


def run_processors(row: Row, names: Sequence[str], processors: Processors, history: History) -> None:
    """Applies what was handed in, by name. Stuck for a name that nobody handed in, and for one that raises or leaves what is no
    logit: whoever wrote it answers for it, and only who asked for it suffers."""
    for name in names:
        if name not in processors:
            listed = ", ".join(sorted(processors)) or "none"
            raise Stuck(f"a logits processor must be handed to the runner by name, found {name!r}, handed in: {listed}")
        try:
            processors[name](row, history)
        except Exception as error:
            raise Stuck(f"a logits processor must not raise, found {name!r} with {type(error).__name__}: {error}") from error
        if not bool((row < np.inf).all()):
            raise Stuck(f"a logits processor must leave numbers or -inf, found NaN or inf behind {name!r}")


def add_bias(row: Row, bias: Sequence[tuple[int, float]]) -> None:
    """Adds to the logits of single tokens."""
    for token, amount in bias:
        row[token] += amount


def penalise_repetition(row: Row, penalty: float, history: History) -> None:
    """Divides positive logits and multiplies the others, of every token of prompt and output (Keskar et al., arXiv
    1909.05858)."""
    if penalty != 1:
        seen = np.unique(np.array((*history.prompt, *history.output), dtype=np.int64))
        values = row[seen]
        row[seen] = np.where(values > 0, values / penalty, values * penalty)


def penalise_frequency(row: Row, penalty: float, output: Sequence[int]) -> None:
    """Takes `penalty` off for each time that a token stands in the output."""
    if penalty != 0 and output:
        tokens, counts = np.unique(output, return_counts=True)
        row[tokens] -= penalty * counts


def penalise_presence(row: Row, penalty: float, output: Sequence[int]) -> None:
    """Takes `penalty` off each token that stands in the output, once."""
    if penalty != 0 and output:
        row[np.unique(output)] -= penalty


def adjust(
    row: Row,
    params: SamplingParams,
    history: History,
    processors: Processors = NO_PROCESSORS,
    grammars: Grammars | None = None,
) -> None:
    """All steps on one row, in their order, in place. Raises Stuck rather than have a grammar broken."""
    keep_allowed(row, params.allowed_token_ids)
    keep_grammatical(row, params.grammar, history.output, params.stop_token_ids, grammars)
    drop_bad_words(row, params.bad_words, history.output)
    run_processors(row, params.processors, processors, history)
    add_bias(row, params.logit_bias)
    penalise_repetition(row, params.repetition_penalty, history)
    penalise_frequency(row, params.frequency_penalty, history.output)
    penalise_presence(row, params.presence_penalty, history.output)
    if params.grammar is not None and row.max() == -np.inf:
        raise Stuck(f"{NO_TOKEN_LEFT}, found none behind {len(history.output)} tokens; leave other restrictions away")


def stuck_after(
    row: Row, params: SamplingParams, history: History, processors: Processors, grammars: Grammars | None
) -> str | None:
    """`adjust` for a place that may not be reached, as behind a draft that falls: why no token can be drawn there, or None."""
    try:
        adjust(row, params, history, processors, grammars)
    except Stuck as error:
        row.fill(-np.inf)
        return str(error)
    return None
