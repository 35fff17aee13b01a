"""Claims about `assay generate`: it streams what the engine says, ends where it is asked to, and answers bad input."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import jsonschema
import pytest

from ci import cli, generate
from ci.generate_command import Printer
from ci.tiny import ByteTokenizer
from engine_under_test import FinishReason
from engine_under_test.text import TextDelta, TextEngine

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def call(*words: str) -> tuple[int, str, str]:
        code = 0
        try:
            cli.main(["generate", *words])
        except SystemExit as end:
            code = int(end.code or 0)
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return call


def tiny(run: Run, *words: str) -> tuple[str, str]:
    code, out, err = run("hello", "--model", "tiny", "--max-tokens", "24", *words)
    assert code == 0, err
    return out, err


def test_it_says_what_computes_and_how_fast(run: Run) -> None:
    out, err = tiny(run)
    assert out.endswith("\n")
    loading, backend, speed = err.splitlines()
    assert loading == "loading tiny …"
    assert backend.startswith("a tiny random model · attention ")
    assert "24 tokens in " in speed
    assert "tokens a second" in speed
    assert speed.endswith("ended by length")


def test_the_same_seed_says_the_same_and_another_something_else(run: Run) -> None:
    warm = ("--temperature", "2", "--top-k", "40", "--top-p", "0.95", "--min-p", "0.01")
    texts = [tiny(run, *warm, "--seed", seed)[0] for seed in ("7", "0x7", "8")]
    assert texts[0] == texts[1] != texts[2]


def test_top_k_of_one_is_greedy(run: Run) -> None:
    assert tiny(run, "--temperature", "5", "--top-k", "1")[0] == tiny(run)[0]


def test_a_stop_string_ends_the_text_in_front_of_it(run: Run) -> None:
    whole = tiny(run)[0].rstrip("\n")
    stop = whole[9:11]
    out, err = tiny(run, "--stop", stop)
    assert out.rstrip("\n") == whole[: whole.index(stop)]
    assert err.endswith("ended by stop\n")


def test_json_holds_every_choice_and_standard_output_nothing_else(run: Run) -> None:
    out, _ = tiny(run, "--n", "3", "--temperature", "1", "--json")
    told = json.loads(out)
    assert [choice["tokens"] for choice in told["choices"]] == [24] * 3
    assert len({choice["text"] for choice in told["choices"]}) == 3
    assert told["prompt_tokens"] == 5
    assert told["tokens_per_s"] > 0
    lines = tiny(run, "--n", "3", "--temperature", "1")[0]
    for number, choice in enumerate(told["choices"], 1):
        assert f"[{number} of 3] {choice['text']}\n" in lines


SWITCHES = ("--eager", "--batch-invariant", "--no-prefix-cache", "--no-batching", "--no-chunking")


@pytest.mark.parametrize("switches", [*((each,) for each in SWITCHES), SWITCHES[1:]], ids=" ".join)
def test_a_fallback_is_told_at_the_start_and_says_the_same(run: Run, switches: tuple[str, ...]) -> None:
    warm = ("--temperature", "1", "--n", "2", "--seed", "5")
    out, err = tiny(run, *warm, *switches)
    assert out == tiny(run, *warm)[0]
    names = [switch.removeprefix("--").replace("-", " ") for switch in switches]
    assert err.splitlines()[1].endswith(", ".join(("float32", *names)))


def test_without_chunks_a_prompt_longer_than_a_step_is_taken_whole(run: Run) -> None:
    long = ("word " * 200, "--model", "tiny", "--max-tokens", "4")
    assert run(*long, "--no-chunking")[:2] == run(*long)[:2]


def test_a_chat_is_another_prompt(run: Run) -> None:
    told = [json.loads(tiny(run, "--json", *chat)[0])["prompt_tokens"] for chat in ((), ("--chat",))]
    assert told == [5, len("user: hello\nassistant: ")]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        pytest.param(("a", "--max-tokens", "0"), "max_tokens must be an integer of at least 1", id="no tokens"),
        pytest.param(("a", "--top-p", "nan"), "top_p must be a number above 0, up to 1, found nan", id="no number"),
        pytest.param(("a", "--top-k", "-2"), "top_k must be an integer of at least 0", id="a negative top_k"),
        pytest.param(("a", "--min-p", "2"), "min_p must be a number between 0 and 1", id="a min_p above one"),
        pytest.param(("a", "--n", "0"), "--n must be from 1 to 64, found 0", id="no choices"),
        pytest.param(("a", "--n", "65"), "--n must be from 1 to 64, found 65", id="more choices than an engine runs"),
        pytest.param(("",), "a prompt must have at least one token", id="an empty prompt"),
        pytest.param(("a", "--stop", ""), "stop strings are", id="an empty stop string"),
        pytest.param(("a", "--max-tokens", "4000"), "must fit in the 2048 positions", id="more than the model can hold"),
        pytest.param(("a", "--seed", "x"), "'x'; say for example --seed 7, or leave it away for 0", id="a seed that is none"),
        pytest.param(("a", "--eager", "--batch-invariant"), "leave one of them away", id="two attentions"),
        pytest.param(("a", "--threads", "0"), "'--threads'", id="no threads"),
        pytest.param(("a", "--threads", "100000"), "100000 is not in the range 1<=x<=", id="threads that crash torch"),
    ],
)
def test_one_sentence_and_64_for(run: Run, words: tuple[str, ...], sentence: str) -> None:
    code, out, err = run(*words, "--model", "tiny")
    assert (code, out) == (64, "")
    assert sentence in err.splitlines()[-1]
    assert "Traceback" not in err
    assert "loading" not in err or words[1:] == ("--max-tokens", "4000")  # only the length needs the model


@pytest.mark.parametrize("command", [("generate", "a", "--model"), ("model", "fetch", "--cache")], ids=" ".join)
def test_an_empty_value_is_refused(command: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        cli.main([*command, ""])
    assert end.value.code == 64
    assert f"{command[-1]} must" in capsys.readouterr().err


def test_without_the_model_it_says_how_to_have_it(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASSAY_CACHE", str(tmp_path))
    code, out, err = run("hello")
    assert (code, out) == (64, "")
    assert err.splitlines()[-1].endswith("run assay model fetch")


def test_a_path_that_is_no_model_is_refused(run: Run, tmp_path: Path) -> None:
    code, _, err = run("hello", "--model", str(tmp_path / "nothing"))
    assert code == 64
    assert "nothing" in err.splitlines()[-1]


def test_a_safetensors_file_stands_for_its_folder(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "model.safetensors"
    file.touch()
    code, _, err = run("hello", "--model", str(file))
    assert (code, err.splitlines()[-1].endswith("name its folder")) == (64, True)
    (tmp_path / "config.json").touch()
    opened: list[Path] = []
    monkeypatch.setattr("engine_under_test.model.load.load_weights", opened.append)
    monkeypatch.setattr("engine_under_test.model.tokenizer.load_tokenizer", opened.append)
    generate.open_model(str(file))
    assert opened == [tmp_path, tmp_path]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full; run it on Linux")
@pytest.mark.parametrize("flags", [(), ("--json",)], ids=["text", "JSON"])
def test_a_full_standard_output_is_one_sentence_and_64(flags: tuple[str, ...]) -> None:
    command = [sys.executable, "-m", "ci.cli", "generate", "hi", "--model", "tiny", "--max-tokens", "4", *flags]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 64
    assert done.stderr.splitlines()[-1].startswith("assay: standard output must take the text, but does not: No space left")


def test_ctrl_c_ends_with_what_was_said_and_130(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = TextEngine.stream

    def cut_off(self: TextEngine) -> Iterator[TextDelta]:
        for number, delta in enumerate(whole(self)):
            if number == 5:
                raise KeyboardInterrupt
            yield delta

    monkeypatch.setattr(TextEngine, "stream", cut_off)
    code, out, err = run("hello", "--model", "tiny")
    assert code == 130
    assert out.endswith("\n")
    assert err.splitlines()[-1].startswith("assay: interrupted by Ctrl-C after ")
    assert "Traceback" not in err


def test_later_choices_are_printed_when_those_before_have_ended(capsys: pytest.CaptureFixture[str]) -> None:
    printer = Printer(2, as_json=False)
    seen = []
    for choice, text, reason in ((1, "x", None), (0, "a", None), (1, "y", FinishReason.STOP), (0, "b", FinishReason.LENGTH)):
        printer.show(TextDelta("r", choice, text, 1, reason))
        seen.append(capsys.readouterr().out)
    assert seen == ["", "[1 of 2] a", "", "b\n[2 of 2] xy\n"]


def test_the_tiny_tokenizer_reads_back_what_it_wrote() -> None:
    stream = ByteTokenizer().stream()
    assert "".join(map(stream.push, ByteTokenizer().encode("añ😀"))) + stream.end() == "añ😀"
    assert generate.open_model("tiny").weights.config.vocab_size == ByteTokenizer.vocab_size


def test_options_of_the_sampler_change_what_is_said(run: Run) -> None:
    plain = tiny(run)[0]
    for words in (
        ("--repetition-penalty", "2"), ("--presence-penalty", "2"), ("--frequency-penalty", "2"), ("--logit-bias", "65:50"),
        ("--allowed-tokens", "65, 66"), ("--bad-words", plain[2]),
    ):  # fmt: skip
        assert tiny(run, *words)[0] != plain, words
    assert tiny(run, "--logit-bias", "65:100")[0] == "A" * 24 + "\n"
    assert set(tiny(run, "--allowed-tokens", "65,66", "--temperature", "3")[0]) == {"A", "B", "\n"}
    assert plain[2] not in tiny(run, "--bad-words", plain[2])[0]


def test_log_probabilities_are_told_to_people_and_to_programs(run: Run) -> None:
    _, err = tiny(run, "--logprobs", "2")
    assert sum(line.startswith("[1] ") and "   of " in line for line in err.splitlines()) == 24
    (choice,) = json.loads(tiny(run, "--logprobs", "2", "--json")[0])["choices"]
    told = choice["logprobs"]
    assert [len(each["top"]) for each in told] == [2] * 24
    assert all(each["token"] == each["top"][0]["token"] and each["logprob"] < 0 for each in told)
    words = ("--logprobs", "all", "--processed-logprobs", "--allowed-tokens", "65", "--json")
    (first, *_) = json.loads(tiny(run, *words)[0])["choices"][0]["logprobs"]
    assert first["logprob"] == 0
    assert {each["logprob"] for each in first["top"]} == {0, None}
    assert "logprobs" not in json.loads(tiny(run, "--json")[0])["choices"][0]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--logprobs", "-1"), "--logprobs is an integer of at least 0, or all, found '-1'"),
        (("--logit-bias", "65"), "--logit-bias is the number of a token, a colon and a number, found '65'"),
        (("--logit-bias", "65:101"), "between -100 and 100, found (65, 101.0)"),
        (("--logit-bias", "65:nan"), "between -100 and 100, found (65, nan)"),
        (("--allowed-tokens", "1,,2"), "numbers of tokens with commas between them, found '1,,2'"),
        (("--allowed-tokens", "999"), "a token that is allowed must be an integer between 0 and 256, found 999"),
        (("--bad-words", ""), "of at least one character"),
        (("--repetition-penalty", "0"), "repetition_penalty must be a number between 0.001 and 1000"),
        (("--frequency-penalty", "2.5"), "frequency_penalty must be a number between -2 and 2, found 2.5"),
        (("--min-tokens", "999"), "min_tokens must be an integer between 0 and max_tokens, found 999"),
        (("--processed-logprobs",), "found no --logprobs"),
    ],
    ids=lambda words: " ".join(words) if isinstance(words, tuple) else "",
)
def test_an_option_that_can_not_be_is_refused_with_a_sentence(run: Run, words: tuple[str, ...], said: str) -> None:
    code, out, err = run("hello", "--model", "tiny", *words)
    assert (code, out) == (64, "")
    assert said in err
    assert "Traceback" not in err


SCHEMA = json.dumps(
    {
        "type": "object",
        "properties": {"a": {"type": "integer", "maximum": 99}},
        "required": ["a"],
        "additionalProperties": False,
    }
)


def test_an_answer_with_a_schema_is_json_that_fits_it(run: Run, tmp_path: Path) -> None:
    kept = tmp_path / "schema.json"
    kept.write_text(SCHEMA)
    words = ("--temperature", "1", "--n", "3", "--max-tokens", "40", "--json")
    answers = [json.loads(tiny(run, *words, "--json-schema", schema)[0]) for schema in (SCHEMA, str(kept))]
    assert [choice["text"] for choice in answers[0]["choices"]] == [choice["text"] for choice in answers[1]["choices"]]
    for choice in answers[0]["choices"]:
        assert choice["finish_reason"] == "stop"
        jsonschema.validate(json.loads(choice["text"]), json.loads(SCHEMA))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--regex", "[ab]{3}"), None),
        (("--regex", "[ab]{30}", "--max-tokens", "4"), "--max-tokens cut"),
        (("--regex", "[ab]{3}c", "--stop", "c"), "--stop cut"),
        (("--max-tokens", "4"), None),
    ],
    ids=["whole", "cut by the number of tokens", "cut by a stop string", "without a grammar"],
)
def test_an_answer_that_may_not_be_whole_is_said_to_be(run: Run, words: tuple[str, ...], said: str | None) -> None:
    last = tiny(run, *words)[1].splitlines()[-1]
    if said is None:
        assert "need not be" not in last
    else:
        assert last == f"an answer that {said} need not be a whole text of its grammar"


def test_an_answer_with_choices_or_an_expression_is_one_of_its_texts(run: Run) -> None:
    assert tiny(run, "--choice", "yes", "--choice", "no/é")[0].rstrip("\n") in ("yes", "no/é")
    assert re.fullmatch("[ab]{3}-[0-9]", tiny(run, "--regex", "[ab]{3}-[0-9]")[0].rstrip("\n"))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--json-schema", '{"type": "strng"}'), "Invalid type: strng"),
        (("--json-schema", "nowhere.json"), "No such file"),
        (("--json-schema", ""), "--json-schema is a schema, or the name of a file with one, found nothing"),
        (("--json-schema", "5"), "must be an object"),
        (("--json-schema", '{"type":'), "must be JSON, but it is not"),
        (("--regex", "(a"), "unclosed group"),
        (("--regex", "a", "--choice", "b"), "one grammar at most, found --regex and --choice"),
        (("--choice", ""), "at least one character"),
        (("--choice", "a", "--min-tokens", "3"), "min_tokens must be 0"),
    ],
    ids=["type", "file", "nothing", "a number", "json", "expression", "two", "empty", "min tokens"],
)
def test_a_grammar_that_can_not_be_used_is_answered_in_one_sentence(run: Run, words: tuple[str, ...], said: str) -> None:
    code, out, err = run("hello", "--model", "tiny", *words)
    assert (code, out) == (64, "")
    (line,) = err.splitlines()
    assert said in line


@pytest.mark.parametrize(
    ("words", "other"),
    [
        (("--choice", "a", "--allowed-tokens", "5"), "--allowed-tokens"),
        (("--choice", "abc", "--bad-words", "a"), "--bad-words"),
    ],
    ids=["allowed tokens", "bad words"],
)
def test_options_that_leave_no_token_are_both_named(run: Run, words: tuple[str, ...], other: str) -> None:
    code, out, err = run("hello", "--model", "tiny", *words)
    assert (code, out) == (64, "")
    expected = (
        f"--choice and {other} must leave a token that may come, found none behind 0 tokens; leave --choice or {other} away"
    )
    assert err.splitlines()[-1] == f"assay: {expected}"


def test_drafts_change_no_word_and_are_told_of(run: Run) -> None:
    plain, _ = tiny(run)
    for name in ("lookup", "tiny"):
        out, err = tiny(run, "--draft", name, "--draft-width", "3")
        assert out == plain
        assert re.search(r"; \d+ of \d+ drafts stood; ended by length$", err.splitlines()[-1])
    assert "; 0 of" not in err, "the model guesses itself"


def test_a_draft_model_speaks_warm_and_in_json(run: Run) -> None:
    words = ("--draft", "tiny", "--temperature", "1.5", "--n", "2", "--logprobs", "1", "--json")
    code, out, err = run("hello", "--model", "tiny", "--max-tokens", "12", *words)
    assert code == 0, err
    told = json.loads(out)
    assert [choice["tokens"] for choice in told["choices"]] == [12, 12]
    assert 0 < told["drafts"]["accepted"] <= told["drafts"]["proposed"]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--draft", "lookup", "--draft-width", "0"), "--draft-width must be from 1 to 16, found 0"),
        (
            ("--draft", "nowhere"),
            "--draft must be lookup, tiny, smollm2, or the path of a model, found 'nowhere', and",
        ),
        (("--draft", ""), "or the path of a model, found nothing; name one of these"),
        (("--draft-width", "999"), "found no --draft; add for example --draft lookup"),
    ],
    ids=["no width", "no such model", "no name", "a width alone"],
)
def test_a_draft_that_can_not_be_is_refused(run: Run, words: tuple[str, ...], sentence: str) -> None:
    code, out, err = run("hello", "--model", "tiny", *words)
    assert (code, out) == (64, "")
    assert sentence in err
    assert "Traceback" not in err


def test_an_adapter_changes_what_is_said_and_is_told_of(run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = str(tmp_path / "made")
    cli.main(["model", "adapter", folder, "--model", "tiny", "--strength", "1"])
    assert "rank 8 on q, k, v, o, gate, up, down of 2 layers" in capsys.readouterr().out
    plain, _ = tiny(run)
    adapted, told = tiny(run, "--adapter", folder)
    assert adapted != plain
    assert f"adapter {folder}" in told
    assert tiny(run, "--adapter", folder, "--draft", "lookup")[0] == adapted


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("nowhere", "an adapter must be a folder with adapter_config.json and adapter_model.safetensors"),
        ("", "--adapter must name the folder of an adapter, found nothing; name one, or leave it away"),
    ],
)
def test_a_folder_without_an_adapter_is_refused(run: Run, name: str, sentence: str) -> None:
    code, out, err = run("hello", "--model", "tiny", "--adapter", name)
    assert code
    assert not out
    assert sentence in err
    assert "Traceback" not in err


def test_an_adapter_is_never_written_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["model", "adapter", str(tmp_path), "--model", "tiny"])
    assert "an adapter needs a folder of its own" in capsys.readouterr().err
