"""A suite with one failure that has operations and one that has none."""

from __future__ import annotations

from engine_under_test.types import Request, SamplingParams
from properties.op import Op, OpKind
from properties.suite import CheckResult, Failure, Suite, SuiteContext
from properties.verdict import Verdict, Violation

OPS = (Op(OpKind.ADD, request=Request("a", tuple(range(9)), SamplingParams(max_tokens=4))), Op(OpKind.STEP), Op(OpKind.STEP))
VIOLATION = Violation(
    "KV-4", "freed once", "block 3", "2 entries in the free queue", "1", ("acquired by   a (incarnation 1) at op 1",)
)
WORLD = {"target": "assay", "config": {"num_blocks": 6, "block_size": 4, "max_num_seqs": 4, "max_tokens_per_step": 8}}


def _fail(context: SuiteContext) -> CheckResult:
    failures = (
        Failure(VIOLATION, f"{context.seed:#x}#1187", WORLD, OPS, ops_found=61),
        Failure(Violation("ST-2", "sampler", "the sampled law", "tv 0.2", "tv below 0.01"), f"{context.seed:#x}"),
    )
    return CheckResult("failing", Verdict.INVALID, examples=1, ops=61, failures=failures)


SUITES = (Suite("failing", "failing suite", _fail, share_s=0.1),)
