"""A walk whose history depends on the hash seed of its process."""

from __future__ import annotations

from properties.suite import CheckResult, Suite, SuiteContext
from properties.verdict import Verdict


def _walk(_context: SuiteContext) -> CheckResult:
    return CheckResult(
        "unrepeatable", Verdict.VALID, examples=1, ops=1, digests={"first": "aa", "second": f"{hash('assay'):x}"}
    )


SUITES = (Suite("unrepeatable", "unrepeatable walk", _walk, share_s=0.1, has_walk_seeds=True),)
