"""Claims about docs/last-seen.json: its form, and that whoever points to it finds an entry."""

from __future__ import annotations

import re
from datetime import date
from pathlib import Path

import pytest

from ci.last_seen import not_run, read_last_seen
from ci.outcome import NotRun
from engine_under_test.errors import BadInput
from engine_under_test.execution.kernels import decode, prefill, store

SEEN = {entry.suite: entry for entry in read_last_seen()}
KERNELS = (store.store_kernel, decode.split_kernel, decode.reduce_kernel, prefill.prefill_kernel)
DOCSTRINGS = {kernel.function.__name__: kernel.function.__doc__ for kernel in KERNELS} | {
    module.__name__.rpartition(".")[2]: module.__doc__ for module in (store, decode, prefill)
}


@pytest.mark.parametrize("name", DOCSTRINGS)
def test_a_kernel_points_to_entries_that_exist(name: str) -> None:
    text = DOCSTRINGS[name] or ""
    assert "docs/last-seen.json" in text
    named = re.findall(r"``((?:kernels|attention)-[a-z]+)``", text)
    assert {"kernels-interpreter", "kernels-compiled", "kernels-cuda"} <= set(named)
    assert set(named) <= set(SEEN)


def test_an_entry_names_day_and_commit_or_neither() -> None:
    for entry in SEEN.values():
        assert bool(entry.last_seen) == bool(entry.commit)
        if entry.last_seen:
            date.fromisoformat(entry.last_seen)
            assert re.fullmatch(r"[0-9a-f]{7,40}", entry.commit)


def test_a_suite_that_ran_is_not_listed_and_one_that_was_left_out_keeps_its_day() -> None:
    seen = (NotRun("a", "needs a device", "2026-01-02", "abcdef1"), NotRun("b", "needs a device"))
    assert not_run(seen, {}, ran={"a"}) == (seen[1],)
    assert not_run(seen, {"a": "not in profile quick"}, ran=set()) == (
        NotRun("a", "not in profile quick", "2026-01-02", "abcdef1"),
        seen[1],
    )


def test_a_file_of_another_form_is_refused_in_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "last-seen.json"
    path.write_text('{"suites": [{"suite": "a"}]}')
    with pytest.raises(BadInput, match="must hold"):
        read_last_seen(path)
