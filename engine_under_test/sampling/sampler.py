"""From logits to tokens: what `adjustments.py` has, then mask, greedy, temperature, min-p, top-k, top-p; log-probabilities
beside. Float64 throughout, as docs/fingerprint.md ("Next token") lays down.

Owns: how a token is chosen. Never: where logits come from, or where noise comes from (it is handed in).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from engine_under_test.sampling.adjustments import NO_PROCESSORS, Processors, stuck_after
from engine_under_test.sampling.logprobs import told
from engine_under_test.sampling.processors import has_processors, truncate
from engine_under_test.seams import Grammars, Noise, Purpose
from engine_under_test.types import History, Logprobs, LogprobsMode, SamplingParams

Logits = npt.NDArray[np.float64]  # [rows, vocabulary]
Tokens = npt.NDArray[np.int64]  # [rows]


class Draws(NamedTuple):
    """What rows ask of the sampler, in columns. A position is the index in prompt + output of the token to be chosen.

    ``histories``: for each row whose parameters need it (`SamplingParams.needs_history`) all tokens in front of the position,
    else None; () if there is no such row, which is quickest.
    """

    params: Sequence[SamplingParams]
    choices: Sequence[int]
    positions: Sequence[int]
    prompt_lens: Sequence[int]
    histories: Sequence[History | None] = ()

    def part(self, rows: slice) -> Draws:
        """Some of them, that follow on each other."""
        params, choices, positions, prompt_lens, histories = self
        return Draws(params[rows], choices[rows], positions[rows], prompt_lens[rows], histories[rows])


class Sampled(NamedTuple):
    """One token a row, and what is told beside it: None for a row that does not ask, () if none does. ``stuck``: the rows for
    which no token can be drawn (`adjustments.stuck_after`), with the reason: whatever stands there means nothing."""

    tokens: list[int]
    logprobs: Sequence[Logprobs | None] = ()
    stuck: Mapping[int, str] = MappingProxyType({})


def mask_tokens(logits: Logits, row: int, token_ids: Iterable[int]) -> None:
    """Gives tokens of one row probability 0, in place; those outside the vocabulary have it already."""
    vocab_size = logits.shape[1]
    logits[row, [token for token in token_ids if 0 <= token < vocab_size]] = -np.inf


def mask_early_stops(logits: Logits, draws: Draws) -> None:
    """Masks the stop tokens of the rows that have not emitted `min_tokens` tokens yet, in place."""
    for row, (params, _choice, position, prompt_len) in enumerate(zip(*draws[:4], strict=True)):
        if params.min_tokens > position - prompt_len:
            mask_tokens(logits, row, params.stop_token_ids)


def greedy(logits: Logits) -> Tokens:
    """The highest logit; among equals the lowest token."""
    best: Tokens = logits.argmax(axis=1)
    return best


def gumbel_max(logits: Logits, temperatures: npt.NDArray[np.float64], uniforms: npt.NDArray[np.float64]) -> Tokens:
    """One sample a row from softmax(logits / temperature): the highest of scaled logit plus Gumbel noise (Gumbel 1954).

    `temperatures` [rows] > 0, `uniforms` [rows, vocabulary] in (0, 1).
    """
    with np.errstate(over="ignore", invalid="ignore"):  # a tiny temperature ends in -inf; a row of -inf in NaN, hence token 0
        scores = logits - logits.max(axis=1, keepdims=True)
        scores /= temperatures[:, None]
        scores -= np.log(-np.log(uniforms))
    return greedy(scores)


def sample_and_tell(
    logits: Logits,
    draws: Draws,
    noise: Noise,
    processors: Processors = NO_PROCESSORS,
    grammars: Grammars | None = None,
    settled: Mapping[int, int] = MappingProxyType({}),
) -> Sampled:
    """All steps: one token a row, with log-probabilities where they are asked for. Changes `logits` in place. ``settled``: rows
    whose token was found elsewhere, and is told of."""
    if not draws.histories:
        return Sampled(sample(logits, draws, noise, settled).tolist())
    columns = list(zip(draws.params, draws.histories, strict=True))
    raw = {row: logits[row].copy() for row, (params, _) in enumerate(columns) if asks_for(params, LogprobsMode.RAW)}
    stuck: dict[int, str] = {}
    for row, (params, history) in enumerate(columns):
        if history is not None and params.is_adjusted:
            why = stuck_after(logits[row], params, history, processors, grammars)
            if why is not None:
                stuck[row] = why
    tokens: list[int] = sample(logits, draws, noise, settled).tolist()
    logprobs: list[Logprobs | None] = [None] * len(tokens)
    for row, (params, _) in enumerate(columns):
        if params.logprobs is not None:
            whole = raw[row] if row in raw else scaled(logits[row], params)
            logprobs[row] = told(whole, tokens[row], params.logprobs)
    return Sampled(tokens, logprobs if any(logprobs) else (), stuck)


def asks_for(params: SamplingParams, mode: LogprobsMode) -> bool:
    """Whether a row is told log-probabilities of this kind."""
    return params.logprobs is not None and params.logprobs_mode is mode


def scaled(row: npt.NDArray[np.float64], params: SamplingParams) -> npt.NDArray[np.float64]:
    """(logit - highest logit) / temperature of one row, as it is drawn from; greedy: the row itself."""
    if params.temperature == 0:
        return row
    with np.errstate(over="ignore", invalid="ignore"):  # as in `gumbel_max`
        found: npt.NDArray[np.float64] = (row - row.max()) / params.temperature
    if found[0] != found[0]:  # -inf everywhere: nothing has a chance
        found.fill(-np.inf)
    return found


def sample(logits: Logits, draws: Draws, noise: Noise, settled: Mapping[int, int] = MappingProxyType({})) -> Tokens:
    """The steps from `min_tokens` on: one token a row. Masks `logits` in place; draws noise for the rows with a temperature,
    and for no other."""
    mask_early_stops(logits, draws)
    warm = [row for row, params in enumerate(draws.params) if params.temperature > 0]
    tokens = greedy(logits)
    for row, token in settled.items():
        tokens[row] = token
        truncate(logits[row], draws.params[row])
        warm.remove(row)
    if warm:
        params = [draws.params[row] for row in warm]
        for row, one in zip(warm, params, strict=True):
            if has_processors(one):
                truncate(logits[row], one)
        uniforms = noise.uniform(
            np.array([one.seed for one in params], dtype=np.uint64),
            np.array([draws.choices[row] for row in warm], dtype=np.uint32),
            np.array([draws.positions[row] for row in warm], dtype=np.uint32),
            Purpose.SAMPLE,
            logits.shape[1],
        )
        temperatures = np.array([one.temperature for one in params])
        tokens[warm] = gumbel_max(logits.take(warm, axis=0), temperatures, uniforms)
    return tokens
