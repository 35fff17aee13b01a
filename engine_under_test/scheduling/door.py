"""Decides at the door whether a request is possible at all: each rule a function, each refusal one sentence.

Never orders, never changes anything, and knows no request but this one.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from itertools import chain
from operator import attrgetter
from typing import Any, TypeGuard

from engine_under_test.adapter_book import named
from engine_under_test.config import EngineConfig
from engine_under_test.seams import Grammars
from engine_under_test.types import (
    Adapter,
    GrammarKind,
    GrammarSpec,
    LogprobsMode,
    Media,
    RefusalReason,
    Request,
    SamplingParams,
)

Refusal = tuple[RefusalReason, str]

MOST_BIAS = 100
REPETITION_PENALTIES = (0.001, 1000)  # so far no logit that is a number becomes none
MOST_PENALTY = 2
_TUPLES = ("stop_token_ids", "allowed_token_ids", "bad_words", "processors", "logit_bias")
_tuples_of = attrgetter(*_TUPLES)
_MAX_SEED = 2**64 - 1
_MAX_NOISE_WORD = 2**32 - 1  # choice and position are 32-bit words of a noise address


def refusal_at_the_door(
    request: Request,
    config: EngineConfig,
    now: float,
    adapters: Collection[Adapter] | None = None,
    grammars: Grammars | None = None,
) -> Refusal | None:
    """Why this engine can never run `request`, or None. The message names rule, found, expected and remedy.

    ``adapters``: those that are loaded now; without it, those of the configuration.
    """
    for rule in (_refuse_types, _refuse_parameters, _refuse_adjustments, _refuse_prompt, _refuse_media, _refuse_length):
        refusal = rule(request, config)
        if refusal is not None:
            return refusal
    if refusal := _refuse_adapter(request, config.adapters if adapters is None else adapters):
        return refusal
    if request.deadline_s is not None and request.deadline_s <= now:
        return RefusalReason.DEADLINE_PASSED, (
            f"deadline_s must lie ahead of the engine's clock, found {request.deadline_s} at {now}; send a later deadline"
        )
    return _refuse_grammar(request, grammars)


def _is_text(value: object) -> bool:
    """A string that has a spelling in UTF-8: half of a surrogate pair, as JSON can bring it, has none."""
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_grammar(value: object) -> bool:
    return value is None or (
        isinstance(value, GrammarSpec)
        and isinstance(value.kind, GrammarKind)
        and type(value.sources) is tuple
        and all(map(_is_text, value.sources))
    )


def _is_adapter(value: object) -> bool:
    return value is None or (isinstance(value, Adapter) and _is_text(value.name) and type(value.version) is int)


def _is_media(value: object) -> bool:
    return type(value) is tuple and all(
        isinstance(each, Media) and _is_text(each.digest) and type(each.start) is int and type(each.length) is int
        for each in value
    )


def _refuse_types(request: Request, config: EngineConfig) -> Refusal | None:
    """What is no value of its field, wherever the rules behind this one take it for one."""
    del config
    sampling = request.sampling
    if not isinstance(sampling, SamplingParams):
        return _no_value("sampling", sampling, "`SamplingParams`")
    for name, found in zip(_TUPLES, _tuples_of(sampling), strict=True):
        if type(found) is not tuple:
            return _no_value(name, found, "a tuple")
    checks: tuple[tuple[str, Any, bool, str], ...] = (
        ("request_id", request.request_id, _is_text(request.request_id), "a text"),
        ("prompt", request.prompt, type(request.prompt) is tuple, "a tuple of tokens"),
        ("tenant", request.tenant, _is_text(request.tenant), "a text"),
        ("cache_salt", request.cache_salt, _is_text(request.cache_salt), "a text"),
        ("adapter", request.adapter, _is_adapter(request.adapter), "None or an `Adapter` with a name and a number"),
        ("media", request.media, _is_media(request.media), "a tuple of `Media`, each with a text as digest and two integers"),
    )
    for name, found, is_good, expected in checks:
        if not is_good:
            return _no_value(name, found, expected)
    if not _is_grammar(sampling.grammar):
        what = f"found {sampling.grammar!r}; correct it and send again"
        return RefusalReason.GRAMMAR, f"a grammar must be a `GrammarSpec` of texts, {what}"
    return None


def _no_value(name: str, found: object, expected: str) -> Refusal:
    return RefusalReason.OUT_OF_RANGE, f"{name} must be {expected}, found {found!r}; correct it and send again"


def _is_int(value: object, low: int, high: int) -> bool:
    return type(value) is int and low <= value <= high


def _refuse_parameters(request: Request, config: EngineConfig) -> Refusal | None:
    sampling = request.sampling
    checks: tuple[tuple[str, object, bool, str], ...] = (
        ("max_tokens", sampling.max_tokens, _is_int(sampling.max_tokens, 1, _MAX_NOISE_WORD), "an integer of at least 1"),
        (
            "min_tokens",
            sampling.min_tokens,
            type(sampling.max_tokens) is not int or _is_int(sampling.min_tokens, 0, sampling.max_tokens),
            "an integer between 0 and max_tokens",
        ),
        (
            "temperature",
            sampling.temperature,
            _is_finite(sampling.temperature) and sampling.temperature >= 0,
            "a finite number of at least 0, below 2**63 if it is an integer",
        ),
        (
            "top_k",
            sampling.top_k,
            _is_int(sampling.top_k, 0, _MAX_NOISE_WORD),
            "an integer of at least 0, where 0 keeps every token",
        ),
        ("top_p", sampling.top_p, _is_finite(sampling.top_p) and 0 < sampling.top_p <= 1, "a number above 0, up to 1"),
        ("min_p", sampling.min_p, _is_finite(sampling.min_p) and 0 <= sampling.min_p <= 1, "a number between 0 and 1"),
        ("seed", sampling.seed, _is_int(sampling.seed, 0, _MAX_SEED), "an integer between 0 and 2**64 - 1"),
        ("n", sampling.n, _is_int(sampling.n, 1, config.max_num_seqs), f"an integer between 1 and {config.max_num_seqs}"),
        ("priority", request.priority, _is_int(request.priority, -(2**31), 2**31 - 1), "an integer of 32 bits"),
        ("arrival_s", request.arrival_s, _is_finite(request.arrival_s), "a finite number"),
        ("deadline_s", request.deadline_s, request.deadline_s is None or _is_finite(request.deadline_s), "a finite number"),
    )
    for name, found, is_good, expected in checks:
        if not is_good:
            return _no_value(name, found, expected)
    for token in sampling.stop_token_ids:
        if not _is_int(token, 0, config.vocab_size - 1):
            return RefusalReason.TOKEN_OUT_OF_VOCABULARY, _vocabulary_message("stop token", token, config)
    return None


def _is_finite(value: object) -> TypeGuard[float]:
    """A number and no bool: Python counts that among its integers, and has some that no array takes."""
    return (type(value) is int and abs(value) < 2**63) or (type(value) is float and math.isfinite(value))


def _lies(value: object, low: float, high: float) -> bool:
    return _is_finite(value) and low <= value <= high


def _refuse_adjustments(request: Request, config: EngineConfig) -> Refusal | None:
    """What changes logits before the temperature, and what is told of them."""
    sampling = request.sampling
    checks: list[tuple[str, object, bool, str]] = [
        (
            "repetition_penalty",
            sampling.repetition_penalty,
            _lies(sampling.repetition_penalty, *REPETITION_PENALTIES),
            "a number between {} and {}, where 1 changes nothing".format(*REPETITION_PENALTIES),
        ),
        ("logprobs_mode", sampling.logprobs_mode, isinstance(sampling.logprobs_mode, LogprobsMode), "a `LogprobsMode`"),
    ]
    for name in ("frequency_penalty", "presence_penalty"):
        found = getattr(sampling, name)
        checks.append(
            (name, found, _lies(found, -MOST_PENALTY, MOST_PENALTY), f"a number between -{MOST_PENALTY} and {MOST_PENALTY}")
        )
    for name in ("logprobs", "prompt_logprobs"):
        found = getattr(sampling, name)
        is_good = found is None or _is_int(found, 0, _MAX_NOISE_WORD)
        checks.append((name, found, is_good, "None for none, or an integer of at least 0"))
    for name, found, is_good, expected in checks:
        if not is_good:
            return _no_value(name, found, expected)
    return _refuse_token_lists(sampling, config) or _refuse_processors(sampling, config)


def _refuse_token_lists(sampling: SamplingParams, config: EngineConfig) -> Refusal | None:
    """Allowed tokens, bad words and biases, token by token."""
    for word in sampling.bad_words:
        if type(word) is not tuple or not word:
            return RefusalReason.OUT_OF_RANGE, (
                f"a bad word must be a tuple of at least one token, found {word!r}; correct it and send again"
            )
    for pair in sampling.logit_bias:
        if type(pair) is not tuple or len(pair) != 2 or not _lies(pair[1], -MOST_BIAS, MOST_BIAS):
            return RefusalReason.OUT_OF_RANGE, (
                f"logit_bias must be pairs of a token and a number between -{MOST_BIAS} and {MOST_BIAS}, found {pair!r}; "
                "correct it and send again"
            )
    biased = [pair[0] for pair in sampling.logit_bias]
    named = (
        ("token that is allowed", sampling.allowed_token_ids),
        ("token of a bad word", tuple(chain.from_iterable(sampling.bad_words))),
        ("biased token", biased),
    )
    for what, tokens in named:
        for token in tokens:
            if not _is_int(token, 0, config.vocab_size - 1):
                return RefusalReason.TOKEN_OUT_OF_VOCABULARY, _vocabulary_message(what, token, config)
    if len(set(biased)) < len(biased):
        return RefusalReason.OUT_OF_RANGE, f"logit_bias must name each token once, found {biased}; add up what belongs together"
    return None


def _refuse_processors(sampling: SamplingParams, config: EngineConfig) -> Refusal | None:
    for name in sampling.processors:
        if name not in config.logits_processors:
            listed = ", ".join(config.logits_processors) or "none"
            return RefusalReason.OUT_OF_RANGE, (
                f"a logits processor must be listed in the configuration, found {name!r}, listed: {listed}; list it and hand "
                "it to the runner, or leave it away"
            )
    return None


def _refuse_grammar(request: Request, grammars: Grammars | None) -> Refusal | None:
    """The last rule, since to compile a grammar takes time."""
    sampling = request.sampling
    if sampling.grammar is None:
        return None
    if not sampling.stop_token_ids:
        return RefusalReason.OUT_OF_RANGE, (
            "a grammar must have a stop token beside it that ends a complete text, found no stop_token_ids; name the model's"
        )
    if sampling.min_tokens:
        return RefusalReason.OUT_OF_RANGE, (
            f"min_tokens must be 0 beside a grammar, which alone says when a text is complete, found {sampling.min_tokens}; "
            "have the grammar ask for a longer text"
        )
    if grammars is None:
        return RefusalReason.GRAMMAR, (
            "a grammar needs what compiles it (`CompiledGrammars`) in engine and runner, found none; hand it in, or leave the "
            "grammar away"
        )
    why_not = grammars.why_not(sampling.grammar)
    return None if why_not is None else (RefusalReason.GRAMMAR, why_not)


def _vocabulary_message(what: str, token: object, config: EngineConfig) -> str:
    return f"a {what} must be an integer between 0 and {config.vocab_size - 1}, found {token!r}; check the tokenizer"


def _refuse_prompt(request: Request, config: EngineConfig) -> Refusal | None:
    if not request.prompt:
        return RefusalReason.EMPTY_PROMPT, "a prompt must have at least one token, found none; send at least one"
    vocab_size = config.vocab_size
    if set(map(type, request.prompt)) == {int} and min(request.prompt) >= 0 and max(request.prompt) < vocab_size:
        return None  # the loop is for the message
    for token in request.prompt:
        if type(token) is not int or not 0 <= token < vocab_size:
            return RefusalReason.TOKEN_OUT_OF_VOCABULARY, _vocabulary_message("prompt token", token, config)
    return None


def _refuse_media(request: Request, config: EngineConfig) -> Refusal | None:
    del config
    end = 0
    for item in sorted(request.media, key=lambda each: each.start):
        if not (_is_int(item.length, 1, len(request.prompt)) and _is_int(item.start, end, len(request.prompt) - item.length)):
            return RefusalReason.OUT_OF_RANGE, (
                f"media items must lie inside the prompt of {len(request.prompt)} tokens without overlap and with a length of "
                f"at least 1, found {item.digest!r} at {item.start} with length {item.length}; correct its place"
            )
        end = item.start + item.length
    return None


def _refuse_adapter(request: Request, adapters: Collection[Adapter]) -> Refusal | None:
    if request.adapter is not None and request.adapter not in adapters:
        return RefusalReason.UNKNOWN_ADAPTER, (
            f"an adapter must be loaded, in the version that is named, found {request.adapter.name!r} version "
            f"{request.adapter.version}, loaded: {named(adapters)}; load it or name another"
        )
    return None


def _refuse_length(request: Request, config: EngineConfig) -> Refusal | None:
    needed = len(request.prompt) + request.sampling.max_tokens - 1
    slots = config.num_blocks * config.block_size
    if needed > slots:
        return RefusalReason.TOO_LONG, (
            f"prompt + max_tokens - 1 must fit in the pool of {slots} slots, found {needed}; shorten one of them or enlarge "
            f"num_blocks"
        )
    if not config.chunking and needed > config.max_tokens_per_step:
        return RefusalReason.TOO_LONG, (
            f"without chunking, prompt + max_tokens - 1 must fit in a step of {config.max_tokens_per_step} tokens (it may be "
            f"computed anew after a preemption), found {needed}; shorten one of them or raise max_tokens_per_step"
        )
    return None
