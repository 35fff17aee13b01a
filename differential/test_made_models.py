"""The suite of made models is valid on the engine; what loader, tokenizer or template get wrong of one of them is found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from jinja2.sandbox import ImmutableSandboxedEnvironment

from differential import made_models
from differential.made_files import MODELS
from differential.made_models import check_made_models
from differential.suites import MADE_MODELS, SUITES
from engine_under_test.model import disguise, gguf_file, safetensors_file, tokenizer, tokenizer_files
from engine_under_test.model.tokenizer import Tokenizer
from properties.suite import Profile, SuiteContext
from properties.verdict import Verdict

CONTEXT = SuiteContext(Profile.QUICK, 11)


def test_the_engine_is_valid_and_every_kind_of_file_is_made() -> None:
    result = check_made_models(CONTEXT)
    assert (result.verdict, result.missed, result.failures) == (Verdict.VALID, (), ())
    assert result.examples == len(MODELS)


def test_the_suite_bears_the_name_that_it_reports() -> None:
    assert MADE_MODELS in SUITES
    assert MADE_MODELS.id == made_models.SUITE_ID


def _types_pass_through_bfloat16(patched: pytest.MonkeyPatch) -> None:
    tensors = safetensors_file._tensors
    patched.setattr(
        safetensors_file,
        "_tensors",
        lambda file: ((name, held.bfloat16() if held.dtype is torch.float16 else held) for name, held in tensors(file)),
    )


def _theta_at_the_top_alone(patched: pytest.MonkeyPatch) -> None:
    patched.setattr(safetensors_file, "_rope_theta", lambda data, _path: float(data.get("rope_theta", 10000.0)))


def _texts_are_cut(patched: pytest.MonkeyPatch) -> None:
    encode = Tokenizer.encode
    patched.setattr(Tokenizer, "encode", lambda self, text, **more: encode(self, text, **more)[:1024])


def _digits_alone(patched: pytest.MonkeyPatch) -> None:
    split = tokenizer_files._LLAMA3_SPLIT.replace("{1,3}", "")
    patched.setattr(tokenizer_files, "_SPLITS", dict.fromkeys(tokenizer_files._SPLITS, split))


def _blocks_keep_their_lines(patched: pytest.MonkeyPatch) -> None:
    def plain(**more: Any) -> Any:
        return ImmutableSandboxedEnvironment(extensions=more["extensions"])

    patched.setattr(tokenizer, "ImmutableSandboxedEnvironment", plain)
    tokenizer._template.cache_clear()


@pytest.mark.parametrize(
    ("fault", "subject"),
    [
        pytest.param(_types_pass_through_bfloat16, "tensor lm_head.weight at", id="float16 through bfloat16"),
        pytest.param(_theta_at_the_top_alone, "rope_theta of the model", id="a newer key that is not read"),
        pytest.param(_texts_are_cut, "a text of", id="texts that are cut"),
        pytest.param(_digits_alone, "text '", id="digits alone"),
        pytest.param(_blocks_keep_their_lines, "chat 1 of 4 messages", id="lines of a template's blocks"),
        pytest.param(
            lambda patched: patched.setattr(disguise, "_parts_at_the_ends", lambda _text, _names: ()),
            "chat of 'a",
            id="halves of a name that meet",
        ),
        pytest.param(
            lambda patched: patched.setattr(gguf_file, "_short", lambda _stored: 1e-5), "rms_eps of the model", id="an epsilon"
        ),
    ],
)
def test_a_fault_is_found_and_named(fault: Callable[[pytest.MonkeyPatch], None], subject: str) -> None:
    with pytest.MonkeyPatch.context() as patched:
        fault(patched)
        result = check_made_models(CONTEXT)
    tokenizer._template.cache_clear()
    assert result.verdict is Verdict.INVALID
    found = result.failures[0].violation.subject
    assert f": {subject}" in found
    assert found.startswith(tuple(made.name for made in MODELS))
