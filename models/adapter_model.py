"""Which adapters may be named, what lies in which slot, and who waits for one: known from verbs and plans alone.

Owns `properties.moment.AdapterFacts`. It judges the answers to loads and unloads; plans are judged by predicates on these.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

from engine_under_test.caps import Caps, DeclaredOrder
from engine_under_test.types import Adapter, PlannedStep, Snapshot
from models.allocator_model import Key
from properties.moment import AdapterFacts, ChoiceFacts
from properties.verdict import Violation


class AdapterModel:
    """See the module. ``facts.listed`` is the very set that the request model reads."""

    def __init__(self, caps: Caps, live: Mapping[Key, ChoiceFacts]) -> None:
        self._caps = caps
        self._live = live
        self._latest: dict[str, int] = {}
        for adapter in caps.adapters:
            self._latest[adapter.name] = max(adapter.version, self._latest.get(adapter.name, adapter.version))
        self.facts = AdapterFacts(listed=set(caps.adapters))

    # -- the verbs ---------------------------------------------------------------------------------------------

    def loaded(self, adapter: Adapter, answer: bool) -> Violation | None:
        """A load was answered. It is due if the version is higher than any before under this name."""
        latest = self._latest.get(adapter.name)
        is_due = latest is None or adapter.version > latest
        if answer is not is_due:
            return _wrong_answer(f"a load of {adapter}", answer, f"{is_due}: the highest version so far is {latest}")
        if is_due:
            self.facts.listed -= {each for each in self.facts.listed if each.name == adapter.name}
            self.facts.listed.add(adapter)
            self._latest[adapter.name] = adapter.version
        return None

    def unloaded(self, adapter: Adapter, answer: bool) -> Violation | None:
        """An unload was answered. It is due if the adapter may be named."""
        is_due = adapter in self.facts.listed
        if answer is not is_due:
            return _wrong_answer(f"an unload of {adapter}", answer, f"{is_due}: loaded are {self.facts.listed}")
        self.facts.listed.discard(adapter)
        return None

    # -- plans -------------------------------------------------------------------------------------------------

    def launched(self, step: PlannedStep) -> None:
        """Behind the judgement: its loads have their places, and its slots are in use."""
        facts, reservation, plan_id = self.facts, step.reservation, step.plan.plan_id
        if facts.lacking:
            facts.lacking = set()
        if not reservation.adapter_slots:
            return
        facts.content.update(reservation.adapter_loads)
        facts.in_flight[plan_id] = slots = frozenset(slot for slot in reservation.adapter_slots if slot)
        facts.used.update(dict.fromkeys(slots, plan_id))

    def abandoned(self, lost: Iterable[PlannedStep]) -> None:
        """Nobody knows whether their loads have run."""
        for step in lost:
            for load in step.reservation.adapter_loads:
                self.facts.content.pop(load.slot, None)

    def saw(self, after: Snapshot) -> None:
        """Plans that have settled use nothing any more."""
        if self.facts.in_flight:
            unsettled = set(after.unsettled)
            for plan_id in [plan_id for plan_id in self.facts.in_flight if plan_id not in unsettled]:
                del self.facts.in_flight[plan_id]

    def restarted(self) -> None:
        self.facts.content.clear()
        self.facts.in_flight.clear()

    # -- who waits for a slot -----------------------------------------------------------------------------------

    def began(
        self, begun: Collection[Key], running: Iterable[Key], waiting: Iterable[Key], place: Callable[[Key], int]
    ) -> None:
        """Choices entered with a plan. Which of those that wait could not have entered before them, for want of a slot.

        ``running``: those that ran before; ``place``: the order of acceptance.
        """
        facts, live, in_order = self.facts, self._live, self._caps.order is DeclaredOrder.FIRST_COME
        facts.lacking = set()
        wanting = [key for key in waiting if live[key].request.adapter is not None]
        if not wanting or not self._caps.num_adapter_slots:
            return
        used = frozenset[int]().union(*facts.in_flight.values())
        # what a lost plan was to load lies nowhere: its slot is taken, and whoever wants the adapter needs another one
        taken = {live[key].request.adapter for key in running}.union(
            facts.content[slot] for slot in used & facts.content.keys()
        )
        num_slots = self._caps.num_adapter_slots - len(used - facts.content.keys())
        for key in wanting:
            entered = [other for other in begun if not in_order or place(other) < place(key)]
            pinned = taken.union(live[other].request.adapter for other in entered) - {None}
            if live[key].request.adapter not in pinned and len(pinned) >= num_slots:
                facts.lacking.add(key)

    @property
    def excused(self) -> Collection[Key]:
        """Those whose overtakes by the latest plan count apart."""
        return self.facts.lacking if self._caps.order is DeclaredOrder.FIRST_COME else ()

    def forget(self, key: Key) -> None:
        """It does not wait any more, or begins to anew."""
        self.facts.overtaken.pop(key, None)


def _wrong_answer(subject: str, answer: bool, expected: str) -> Violation:
    return Violation("RS-1", "adapters", subject, str(answer), expected)
