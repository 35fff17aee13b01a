"""Claims about what a report calls the tree that it judges."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from ci.report.closing import opening_line
from ci.tree import Tree, read_tree


def test_without_a_checkout_the_header_names_the_tree_and_no_commit(tmp_path: Path) -> None:
    (tmp_path / "engine.py").write_text("pass\n")
    tree = read_tree(tmp_path)
    assert (tree.commit, len(tree.label)) == ("", 7)
    assert opening_line(tree, "quick", 7, 2, "cpu").startswith(f"tree {tree.label} · profile quick")


def test_without_git_the_header_names_the_tree_and_no_commit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "engine.py").write_text("pass\n")

    def no_git(*_words: object, **_options: object) -> None:
        raise FileNotFoundError("git")

    monkeypatch.setattr(subprocess, "run", no_git)
    assert read_tree(tmp_path).words.startswith("tree ")


def test_a_checkout_is_named_by_its_commit_whether_it_is_clean_or_not() -> None:
    assert Tree("4f2a91c" + "0" * 33, "").words == "commit 4f2a91c"
    assert Tree("4f2a91c" + "0" * 33, "1b2c3d4e").words == "commit 4f2a91c+1b2c3d4"
