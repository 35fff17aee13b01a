"""A suite that raises, and one that ends its whole process without a word."""

from __future__ import annotations

import os

from properties.suite import CheckResult, Suite, SuiteContext


def _raise(_context: SuiteContext) -> CheckResult:
    raise RuntimeError("this suite crashes")


def _die(_context: SuiteContext) -> CheckResult:
    os._exit(7)


SUITES = (Suite("raising", "raising suite", _raise, share_s=0.1), Suite("dying", "dying suite", _die, share_s=0.1))
