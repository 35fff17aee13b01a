"""The invariant catalogue and its predicates: named positive sentences over one `Moment`, for any target.

Here: `catalogue` (every identifier and its statement), `predicate`, one module a group, `panel` (all of them at once).
Not here: what must hold of a whole run (`properties.checkers`). Start reading at `catalogue`, then `kv_ownership`.
"""

from __future__ import annotations

from typing import Final

from properties.invariants import (
    adapters,
    device_order,
    drafts,
    holding,
    kv_eviction,
    kv_index,
    kv_ownership,
    kv_transaction,
    kv_writes,
    results,
    scheduler_fairness,
    scheduler_life,
    scheduler_plan,
    scheduler_retry,
    semantics,
)
from properties.invariants.catalogue import CATALOGUE, MOST_DANGEROUS, Entry, is_most_dangerous
from properties.invariants.panel import Panel
from properties.invariants.predicate import Predicate

ALL: Final[tuple[Predicate, ...]] = (
    *device_order.PREDICATES,
    *results.PREDICATES,
    *drafts.PREDICATES,
    *semantics.PREDICATES,
    *kv_ownership.PREDICATES,
    *kv_writes.PREDICATES,
    *kv_index.PREDICATES,
    *kv_eviction.PREDICATES,
    *kv_transaction.PREDICATES,
    *scheduler_life.PREDICATES,
    *scheduler_plan.PREDICATES,
    *scheduler_fairness.PREDICATES,
    *scheduler_retry.PREDICATES,
    *adapters.PREDICATES,
    *holding.PREDICATES,
)
"""Every predicate: first the order of accesses, which explains whatever else is wrong, then the most dangerous invariants. The
first violation of a moment names it."""

__all__ = ["ALL", "CATALOGUE", "MOST_DANGEROUS", "Entry", "Panel", "Predicate", "is_most_dangerous"]
