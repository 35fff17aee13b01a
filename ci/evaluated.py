"""What a whole gate must have evaluated: every predicate that the engine makes observable, and every checker.

Owns the list of these identifiers. Never judges what they found.
"""

from __future__ import annotations

from collections.abc import Sequence

from ci.outcome import Check
from properties.verdict import Verdict

_NUM_BLOCKS = 6  # of any pool: what is observable does not depend on its size


def never_evaluated(checks: Sequence[Check]) -> str:
    """A reason if a gate over all suites never asked one of them, else nothing. Where a suite broke or gave no result, that
    is the reason already: it ended before it could ask."""
    if any(check.verdict is Verdict.INVALID or check.result is None for check in checks):
        return ""
    asked = {name for check in checks if check.result for name, count in check.result.invariants.items() if count > 0}
    silent = [name for name in must_be_evaluated() if name not in asked]
    return f"never evaluated in any suite: {', '.join(silent)}; nothing is known of them" if silent else ""


def must_be_evaluated() -> tuple[str, ...]:
    """The identifiers, of every order in which the engine serves, of one that speculates and of one before a remote pool, if
    that is installed: some are about one of them."""
    from differential.suites import is_installed
    from engine_under_test.config import Order
    from models.build import world_from
    from properties.checkers import CHECKERS
    from properties.invariants import ALL

    specs = [{"target": "assay", "config": {"num_blocks": _NUM_BLOCKS, "order": order.value}} for order in Order]
    specs.append({"target": "assay", "config": {"num_blocks": _NUM_BLOCKS}, "speculation": {"proposer": "lookup", "width": 1}})
    if is_installed("connector"):
        specs.append({"target": "assay", "config": {"num_blocks": _NUM_BLOCKS}, "remote": {"capacity_blocks": _NUM_BLOCKS}})
    caps = [world_from(spec).target.caps for spec in specs]
    observable = [item.identifier for item in ALL if any(item.is_observable(each) for each in caps)]
    return tuple(dict.fromkeys((*observable, *(checker.identifier for checker in CHECKERS))))
