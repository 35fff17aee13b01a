"""The published model and the loaded one: alike on a sound engine; a fault of loader, tokenizer or template, which both oracles
would share, is found and named."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch

from differential import smollm2
from differential.published import CHATS, FIELDS, FLOORS, TENSORS, TEXTS, TOKENS, Comparison, Published, compare, read_published
from differential.trials import Tally
from engine_under_test.model import gguf_file
from engine_under_test.model.load import load_weights
from engine_under_test.model.tokenizer import Tokenizer, load_tokenizer
from engine_under_test.model.weights import tiny_random
from properties.suite import Profile, SuiteContext
from properties.tiny_gguf import CONFIG, write_gguf
from properties.verdict import Verdict

CONTEXT = SuiteContext(Profile.PR, 5)


@pytest.fixture(scope="module")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(tmp_path_factory.mktemp("published") / "tiny.gguf", tiny_random(replace(CONFIG, ties_head=False), 3))


@pytest.fixture(scope="module")
def published(gguf: Path) -> Published:
    return read_published(gguf)


def test_a_sound_loader_and_tokenizer_give_what_is_published(gguf: Path, published: Published) -> None:
    done = compare(load_weights(gguf), load_tokenizer(gguf), published)
    assert done.violation is None
    assert (done.compared[TENSORS], done.compared[FIELDS]) == (9 * CONFIG.num_layers + 3, FLOORS[FIELDS])
    assert (done.compared[TEXTS], done.compared[CHATS]) == (FLOORS[TEXTS], FLOORS[CHATS])
    assert done.compared[TOKENS] == CONFIG.vocab_size + len(published.named)


def _keys_left_in_pairs(patched: pytest.MonkeyPatch) -> None:
    by_halves = gguf_file.by_halves
    patched.setattr(gguf_file, "by_halves", lambda w, heads: w if heads == CONFIG.num_kv_heads else by_halves(w, heads))


def _theta_not_read(patched: pytest.MonkeyPatch) -> None:
    llama_config = gguf_file.llama_config
    patched.setattr(gguf_file, "llama_config", lambda file: replace(llama_config(file), rope_theta=10000.0))


def _a_norm_plus_one(patched: pytest.MonkeyPatch) -> None:
    llama_of = gguf_file.llama_of
    patched.setattr(gguf_file, "llama_of", lambda file: _with_norm(llama_of(file)))


def _with_norm(weights: Any) -> Any:
    return replace(weights, final_norm=torch.nextafter(weights.final_norm, torch.tensor(9.0)))


@pytest.mark.parametrize(
    ("fault", "subject"),
    [
        pytest.param(_keys_left_in_pairs, "tensor model.layers.0.self_attn.k_proj.weight at [1, 0]", id="keys left in pairs"),
        pytest.param(_theta_not_read, "rope_theta of the model", id="a base of the angles that is not read"),
        pytest.param(_a_norm_plus_one, "tensor model.norm.weight at [0]", id="a norm that is one bit off"),
    ],
)
def test_a_fault_of_the_loader_is_found(
    fault: Callable[[pytest.MonkeyPatch], None], subject: str, gguf: Path, published: Published
) -> None:
    with pytest.MonkeyPatch.context() as patched:
        fault(patched)
        loaded = load_weights(gguf)
    violation = compare(loaded, load_tokenizer(gguf), published).violation
    assert violation is not None
    assert (violation.invariant, violation.subject) == ("SE-1", subject)
    assert violation.found.removesuffix(" as loaded") != violation.expected.removesuffix(" in the file")


class _Forgetful(Tokenizer):
    def render(self, messages: Sequence[Mapping[str, str]], *, add_generation_prompt: bool = True) -> str:
        return super().render(messages[-1:], add_generation_prompt=add_generation_prompt)


class _Credulous(Tokenizer):
    def chat(self, messages: Sequence[Mapping[str, str]], add_generation_prompt: bool = True) -> tuple[int, ...]:
        return self.encode(self.render(messages, add_generation_prompt=add_generation_prompt), with_special=False)


class _SpellingNames(Tokenizer):
    def bytes_of(self, token: int, *, with_special: bool = True) -> bytes:
        return self.backend.decode([token], skip_special_tokens=not with_special).encode()


def _normalising(sound: Tokenizer) -> Tokenizer:
    backend = tokenizers.Tokenizer.from_str(sound.backend.to_str())
    backend.normalizer = tokenizers.normalizers.NFC()
    return Tokenizer(backend, sound.special, sound.chat_template)


def _lowering(sound: Tokenizer) -> Tokenizer:
    backend = tokenizers.Tokenizer.from_str(sound.backend.to_str())
    backend.normalizer = tokenizers.normalizers.Lowercase()
    return Tokenizer(backend, sound.special, sound.chat_template)


@pytest.mark.parametrize(
    ("broken", "subject"),
    [
        pytest.param(_normalising, r"text 'e\u0301 \xe9', token 0", id="a tokenizer that composes characters"),
        pytest.param(_lowering, "prompt 'chat', token 0", id="a tokenizer that lowers letters"),
        pytest.param(
            lambda sound: _Forgetful(sound.backend, sound.special, sound.chat_template),
            "chat 1 of 4 messages, answer to begin, character",
            id="a chat that keeps its last message alone",
        ),
        pytest.param(
            lambda sound: _Credulous(sound.backend, sound.special, sound.chat_template),
            "chat in which a system spells every special token, special ones alone",
            id="a chat in which anybody may write turns of others",
        ),
        pytest.param(
            lambda sound: _SpellingNames(sound.backend, sound.special, sound.chat_template),
            "token 277, character 1",
            id="names that are read as bytes",
        ),
        pytest.param(
            lambda sound: Tokenizer(sound.backend, replace(sound.special, stop=(7,)), sound.chat_template),
            "tokens that end an answer",
            id="another end of an answer",
        ),
    ],
)
def test_a_fault_of_the_text_is_found(
    broken: Callable[[Tokenizer], Tokenizer], subject: str, gguf: Path, published: Published
) -> None:
    violation = compare(load_weights(gguf), broken(load_tokenizer(gguf)), published).violation
    assert violation is not None
    assert violation.invariant == "SC-12"
    assert violation.subject.startswith(subject)


def test_the_suite_is_invalid_by_a_difference_and_says_which(gguf: Path, published: Published) -> None:
    tally = Tally(smollm2.SUITE_ID, CONTEXT.seed)
    smollm2.judge_published(tally, CONTEXT, _with_norm(load_weights(gguf)), load_tokenizer(gguf), published)
    result = tally.result("")
    assert (result.verdict, result.examples) == (Verdict.INVALID, 1)
    assert result.failures[0].violation.subject.startswith("tensor model.norm.weight")


def test_the_suite_is_unknown_where_less_was_compared_than_the_real_model_has(gguf: Path, published: Published) -> None:
    tally = Tally(smollm2.SUITE_ID, CONTEXT.seed)
    smollm2.judge_published(tally, CONTEXT, load_weights(gguf), load_tokenizer(gguf), published)
    result = tally.result("")
    assert result.verdict is Verdict.UNKNOWN
    few = result.reached[TOKENS]
    assert result.missed == (f"{TENSORS} at least 273, found 21", f"{TOKENS} at least 49169, found {few}")
    assert result.invariants == {"SE-1": 21 + 15, "SC-12": few + result.reached[TEXTS] + result.reached[CHATS]}


def test_nothing_compared_misses_every_floor() -> None:
    assert len(Comparison().missed) == len(FLOORS)
