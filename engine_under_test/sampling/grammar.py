"""Structured output: which tokens a grammar allows behind an output. Through the library `llguidance` (the extra `grammar`).

Owns: compiled grammars, and what is remembered of outputs that were asked about. Never: when a mask is applied
(`adjustments.py`), or what a kind of grammar means (`grammar_text.py`).

`allowed` is a pure function of grammar and output. The states that it keeps are found by the output itself, and whatever is not
found is computed from the beginning; so there is no state of a row that could be left behind by a preemption, a token that was
dropped or a draft that was rejected, or that could be asked for by the wrong row (RS-2).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Hashable, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from engine_under_test.errors import ConfigError, RunnerError
from engine_under_test.sampling.grammar_text import CanNotBeUsed, name_of, text_of
from engine_under_test.types import GrammarSpec

if TYPE_CHECKING:
    from llguidance import LLMatcher

    from engine_under_test.sampling.grammar_trial import Budget

_MOST_GRAMMARS = 256  # compiled ones that are kept
_MOST_VERDICTS = 4096
_OF_LARGE_ONES = ("takes more than", "too large", "too many", "limit")
_NOTHING_FOLLOWS = "NoExtension"  # what the library says where no token spells what must follow
_MOST_STATES = 4096  # of outputs of all grammars
_NEAR = 16  # so many tokens before an output a state of it is looked for: a step adds one, with drafts a few

_Key = TypeVar("_Key", bound=Hashable)
_Value = TypeVar("_Value")


class TokenTexts(Protocol):
    """What is wanted of a tokenizer."""

    @property
    def vocab_size(self) -> int: ...

    def bytes_of(self, token: int, *, with_special: bool = True) -> bytes:
        """What a token stands for; b"" for a special one without ``with_special``."""


class _State(NamedTuple):
    """Behind an output. ``mask``: a bit for each token, lowest first, and one for the end of the text behind the vocabulary."""

    matcher: LLMatcher
    mask: bytes


class CompiledGrammars:
    """`seams.Grammars` for one vocabulary: the bytes of each token, b"" for one that is no text. ``most_states``: of how many
    outputs the state is kept; what is not kept is computed again. ``are_tried``: whoever sends requests here has tried their
    grammars, within its budget, so that no process of their own is begun for it once more."""

    def __init__(
        self,
        texts: Sequence[bytes],
        budget: Budget | None = None,
        most_states: int = _MOST_STATES,
        *,
        are_tried: bool = False,
    ) -> None:
        try:
            from engine_under_test.sampling import grammar_trial
        except ModuleNotFoundError as error:
            if error.name != "llguidance":
                raise
            raise ConfigError(
                "structured output needs the optional extra 'grammar', but llguidance is not installed; "
                "run pip install -c constraints.txt 'assay[grammar]'"
            ) from error
        self._library = grammar_trial
        self._budget = grammar_trial.Budget() if budget is None else budget
        self._trial = None if are_tried else grammar_trial.Trial(texts, self._budget)
        self._tokenizer = grammar_trial.tokenizer_of(texts)
        self._vocab_size = len(texts)
        self._most_states = most_states
        self._verdicts: OrderedDict[GrammarSpec, str | None] = OrderedDict()
        self._compiled: OrderedDict[GrammarSpec, LLMatcher] = OrderedDict()
        self._states: OrderedDict[tuple[GrammarSpec, tuple[int, ...]], _State] = OrderedDict()

    @property
    def vocab_size(self) -> int:
        """See `seams.Grammars`."""
        return self._vocab_size

    def why_not(self, spec: GrammarSpec) -> str | None:
        """See `seams.Grammars`. The first question about a grammar takes up to its budget, others are answered at once."""
        try:
            if spec not in self._verdicts:
                _remember(self._verdicts, spec, self._tried(spec), _MOST_VERDICTS)
        except TypeError:  # with something in it that has no hash: no text
            return self._tried(spec)
        self._verdicts.move_to_end(spec)
        return self._verdicts[spec]

    def _tried(self, spec: GrammarSpec) -> str | None:
        try:
            text = text_of(spec, self._budget.source_characters)
        except CanNotBeUsed as error:
            return str(error)
        fault = None if self._trial is None else self._trial.fault_of(text)
        if fault is None:
            return None
        is_large = any(words in fault for words in _OF_LARGE_ONES)
        remedy = "make it smaller" if is_large else "correct it, or leave out what is not supported"
        return f"a {name_of(spec)} must be one that can be compiled, but {fault}; {remedy}"

    def allowed(self, spec: GrammarSpec, output: Sequence[int], ends: Collection[int]) -> npt.NDArray[np.bool_]:
        """See `seams.Grammars`."""
        is_over = any(token in ends for token in output)
        state = None if is_over else self._state_behind(spec, tuple(output))
        if state is None:
            mask, may_end = np.zeros(self._vocab_size, dtype=np.bool_), True
        else:
            bits = np.unpackbits(np.frombuffer(state.mask, np.uint8), bitorder="little", count=self._vocab_size + 1)
            mask, may_end = bits[:-1].view(np.bool_), bool(bits[-1])
        mask[list(ends)] = may_end
        return mask

    def masks(
        self, spec: GrammarSpec, output: Sequence[int], drafts: Sequence[int], ends: Collection[int]
    ) -> npt.NDArray[np.uint32]:
        """[drafts + 1, words]: what may follow the output and each of its drafts; bit t % 32 of word t // 32 for token t."""
        rows = np.array([self.allowed(spec, (*output, *drafts[:count]), ends) for count in range(len(drafts) + 1)])
        packed = np.packbits(rows, axis=1, bitorder="little")
        return np.pad(packed, ((0, 0), (0, -packed.shape[1] % 4))).view("<u4")

    def num_allowed(self, spec: GrammarSpec, output: Sequence[int], drafts: Sequence[int], ends: Collection[int]) -> int:
        """How many of the drafts, from the first on, may follow the output: the others need not be proposed."""
        for count, draft in enumerate(drafts):
            if not self.allowed(spec, (*output, *drafts[:count]), ends)[draft]:
                return count
        return len(drafts)

    def close(self) -> None:
        """Ends the process in which grammars are tried."""
        if self._trial is not None:
            self._trial.close()

    def _state_behind(self, spec: GrammarSpec, output: tuple[int, ...]) -> _State | None:
        """None: the grammar has no text that begins so."""
        found = self._states.get((spec, output))
        if found is not None:
            self._states.move_to_end((spec, output))
            return found
        known, matcher = self._nearest(spec, output)
        rest = list(output[known:])
        if matcher.try_consume_tokens(rest) != len(rest):
            return None
        mask = matcher.compute_bitmask()
        if matcher.is_error() and not matcher.get_error().startswith(_NOTHING_FOLLOWS):
            raise RunnerError(f"the next token of a {name_of(spec)} takes more work than a step may: {matcher.stop_reason()}")
        state = _State(matcher, bytes(len(mask)) if matcher.is_error() else mask)
        _remember(self._states, (spec, output), state, self._most_states)
        return state

    def _nearest(self, spec: GrammarSpec, output: tuple[int, ...]) -> tuple[int, LLMatcher]:
        """A matcher of its own, and how many tokens of the output it has behind it."""
        for known in range(len(output) - 1, max(len(output) - _NEAR, 0), -1):
            state = self._states.get((spec, output[:known]))
            if state is not None:
                return known, state.matcher.deep_copy()
        return 0, self._compile(spec).deep_copy()

    def _compile(self, spec: GrammarSpec) -> LLMatcher:
        matcher = self._compiled.get(spec)
        if matcher is None:
            if (fault := self.why_not(spec)) is not None:
                raise RunnerError(fault)
            matcher = self._library.matcher_of(self._tokenizer, text_of(spec, self._budget.source_characters))
            _remember(self._compiled, spec, matcher, _MOST_GRAMMARS)
        self._compiled.move_to_end(spec)
        return matcher


def grammars_of(tokenizer: TokenTexts, vocab_size: int | None = None) -> CompiledGrammars:
    """For a model's tokenizer. ``vocab_size``: the model's, where it has more tokens than the tokenizer has texts."""
    size = tokenizer.vocab_size
    texts = [tokenizer.bytes_of(token, with_special=False) for token in range(size)]
    return CompiledGrammars(texts + [b""] * ((vocab_size or size) - size))


def _remember(kept: OrderedDict[_Key, _Value], key: _Key, value: _Value, most: int) -> None:
    kept[key] = value
    while len(kept) > most:
        kept.popitem(last=False)
