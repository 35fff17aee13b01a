"""What is being judged: the commit, or the content of a tree that has uncommitted changes; the seed follows from it.

Owns the reading of git and of the files. Never draws a seed from a clock: the same tree gives the same seed.
"""

from __future__ import annotations

import hashlib
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from engine_under_test.errors import BadInput

ROOT = Path(__file__).resolve().parents[1]
_DIGITS = 7
_MAX_SEED = 2**64 - 1


@dataclass(frozen=True, slots=True)
class Tree:
    """``commit`` is the full hash, or empty outside git. ``content`` is a digest of every file when the tree differs from
    the commit, or empty."""

    commit: str
    content: str

    @property
    def label(self) -> str:
        """A name for people and folders: "4f2a91c", or "4f2a91c+1b2c3d4" with uncommitted changes, "1b2c3d4" outside git."""
        return "+".join(part[:_DIGITS] for part in (self.commit, self.content) if part)

    @property
    def words(self) -> str:
        """ "commit 4f2a91c", or "tree 1b2c3d4" where git told of no commit."""
        return f"{'commit' if self.commit else 'tree'} {self.label}"

    @property
    def seed(self) -> int:
        return int((self.content or self.commit)[:_DIGITS], 16)


def read_tree(root: Path = ROOT) -> Tree:
    """The tree at `root`. Without git, or outside a checkout, the Python files stand for the commit."""
    commit = _git(root, "rev-parse", "HEAD")
    if commit is None:
        return Tree(
            "", _digest(root, (str(path.relative_to(root)) for path in root.rglob("*.py") if ".venv" not in path.parts))
        )
    if not _git(root, "status", "--porcelain"):
        return Tree(commit.strip(), "")
    listed = _git(root, "ls-files", "-z", "--cached", "--others", "--exclude-standard") or ""
    return Tree(commit.strip(), _digest(root, listed.split("\0")))


def parse_seed(text: str) -> int:
    """A seed as a person writes it: decimal or 0x hexadecimal."""
    try:
        seed = int(text, 0)
    except ValueError:
        seed = -1
    if not 0 <= seed <= _MAX_SEED:
        raise BadInput(
            f"a seed is a whole number from 0 to 2**64 - 1, decimal or 0x..., found {text!r}; "
            "say for example --seed 0x4f2a91c, or leave --seed away to take it from the tree"
        )
    return seed


def _git(root: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout


def _digest(root: Path, names: Iterable[str]) -> str:
    digest = hashlib.blake2b(digest_size=20)
    for name in sorted(set(filter(None, names))):
        path = root / name
        content = path.read_bytes() if path.is_file() else b""
        digest.update(f"{len(name)}:{name}:{len(content)}:".encode() + content)
    return digest.hexdigest()
