"""Something small that can be mutated, and suites that hunt whatever is wrong with it.

`total` is right; the suites compare it with a count made otherwise, and know nothing of any mutant.
"""

from __future__ import annotations

from ci.doubles.counting import total
from properties.op import Op, OpKind
from properties.suite import CheckResult, Failure, Suite, SuiteContext
from properties.verdict import Verdict, Violation


def _count(context: SuiteContext) -> CheckResult:
    numbers = [context.seed % 7 + place for place in range(5)]
    expected = sum(numbers)
    found = total(numbers)
    if found == expected:
        return CheckResult("counted", Verdict.VALID, examples=1, ops=5, invariants={"SC-14": 1})
    violation = Violation("SC-14", "metrics", "the total", str(found), str(expected))
    failure = Failure(violation, "7", ops=(Op(OpKind.STEP),), ops_found=5)
    return CheckResult("counted", Verdict.INVALID, examples=1, ops=5, failures=(failure,))


SUITES = (Suite("counted", "counted", _count, share_s=0.1),)
