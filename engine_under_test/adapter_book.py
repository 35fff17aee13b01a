"""Owns which adapters may be named, how long each is kept, and which of them lies in which slot of the device.

A slot is a place on the device for the weights of one adapter; slot 0 stands for none. A plan names the slot of each of its
rows and the loads that go before them (`Reservation`), and a slot is *pinned* until the last plan that names it has settled:
meanwhile nothing else is loaded there. Changed by `engine.py` alone. Never decides who waits for a slot
(`scheduling/admission.py`) and never touches weights (a runner's `AdapterSlots` do).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable
from collections.abc import Sequence as Items
from dataclasses import replace

from engine_under_test.errors import BadInput
from engine_under_test.types import Adapter, AdapterLoad, Reservation

_VERSIONS = range(-(2**63), 2**63)  # a version is eight bytes of a prefix key


class AdapterBook:
    """``num_slots`` slots, numbered from 1; at the beginning `adapters` may be named and nothing is loaded.

    An adapter is a name and a version. A name's versions only rise, so that nothing in the prefix cache is ever found under
    an identity that has come to mean other weights (KV-8).
    """

    __slots__ = ("_changed", "_clock", "_latest", "_listed", "_live", "_pins", "_slots", "_used")

    def __init__(self, adapters: Iterable[Adapter], num_slots: int) -> None:
        self._listed = dict.fromkeys(adapters)  # may be named, in the order in which they came
        self._latest: dict[str, int] = {}  # by name, the highest version there ever was
        for adapter in self._listed:
            self._latest[adapter.name] = max(adapter.version, self._latest.get(adapter.name, adapter.version))
        self._live: Counter[Adapter] = Counter()  # requests that have not ended
        self._slots: list[Adapter | None] = [None] * (num_slots + 1)  # None: nothing that is known
        self._pins: dict[int, set[int]] = {}  # by slot, the plans that pin it
        self._used = [0] * (num_slots + 1)  # when, for who is least recently used
        self._clock = 0
        self._changed: list[tuple[int, Adapter | None, int]] = []  # by the last assignment: slot, and what it was

    # ---- who may be named ---------------------------------------------------------------------------------------------

    @property
    def listed(self) -> Collection[Adapter]:
        """Requests may name these."""
        return self._listed.keys()

    @property
    def kept(self) -> tuple[Adapter, ...]:
        """Those listed, then those that are not any more but that some live request still names."""
        left = self._live.keys() - self._listed.keys()
        return (*self._listed, *sorted(left, key=_order)) if left else tuple(self._listed)

    def load(self, adapter: Adapter) -> None:
        """From now on requests may name it, and no older version of its name. BadInput if its version is not a new one."""
        name, version = adapter.name, adapter.version
        if type(name) is not str or type(version) is not int or version not in _VERSIONS:
            raise BadInput(f"an adapter is a string and an integer of 64 bits, its version, found {name!r} and {version!r}")
        latest = self._latest.get(name)
        if latest is not None and version <= latest:
            raise BadInput(
                f"a version of an adapter must be higher than every earlier one of its name, found {name} version {version} "
                f"behind version {latest}; load it as version {latest + 1}"
            )
        for older in [each for each in self._listed if each.name == name]:
            del self._listed[older]
            self._forget_dropped(older)
        self._listed[adapter] = None
        self._latest[name] = version

    def unload(self, adapter: Adapter) -> None:
        """From now on no request may name it; those that did go on, and it is kept for them. BadInput if it is not listed."""
        if adapter not in self._listed:
            raise BadInput(
                f"only an adapter that is loaded can be unloaded, found {adapter.name!r} version {adapter.version}, loaded: "
                f"{named(self._listed)}; name one of these"
            )
        del self._listed[adapter]
        self._forget_dropped(adapter)

    def began(self, adapter: Adapter) -> None:
        """A request that names it was accepted."""
        self._live[adapter] += 1

    def ended(self, adapter: Adapter) -> None:
        """A request that names it has ended; behind the last one, an adapter that is not listed is dropped."""
        self._live[adapter] -= 1
        if not self._live[adapter]:
            del self._live[adapter]
            self._forget_dropped(adapter)

    def _forget_dropped(self, adapter: Adapter) -> None:
        if adapter not in self._listed and adapter not in self._live:
            self._slots = [None if held == adapter else held for held in self._slots]

    # ---- slots ----------------------------------------------------------------------------------------------------------

    @property
    def slots(self) -> tuple[Adapter | None, ...]:
        """What lies in slot 1, 2, ... once the plans in flight have run; None: nothing that can be used."""
        return tuple(self._slots[1:])

    @property
    def has_pins(self) -> bool:
        return bool(self._pins)

    @property
    def in_flight(self) -> Collection[Adapter]:
        """Those whose slots are pinned by plans."""
        return [held for slot in self._pins if (held := self._slots[slot]) is not None] if self._pins else ()

    @property
    def num_slots(self) -> int:
        """Slots that hold something of use, or into which something may be loaded now."""
        return len(self._slots) - 1 - sum([self._slots[slot] is None for slot in self._pins])

    def assign(self, reservation: Reservation, rows: Items[Adapter | None], running: Collection[Adapter]) -> Reservation:
        """The reservation with a slot for each row, and with what is to be loaded first. ``running``: of all who run.

        What is loaded takes a slot in which nothing lies, or else that of the least recently used adapter which is neither
        pinned nor used by anybody who runs.
        """
        plan_id, self._changed, self._clock = reservation.plan_id, [], self._clock + 1
        place = {held: slot for slot, held in enumerate(self._slots) if slot and held is not None}
        loads: list[AdapterLoad] = []
        for adapter in dict.fromkeys(filter(None, rows)):
            slot = place.get(adapter)
            is_resident = slot is not None
            if slot is None:
                slot = self._free_slot({*running, *filter(None, rows)})
            self._changed.append((slot, self._slots[slot], self._used[slot]))
            if not is_resident:
                place[adapter], self._slots[slot] = slot, adapter
                loads.append(AdapterLoad(slot, adapter))
            self._pins.setdefault(slot, set()).add(plan_id)
            self._used[slot] = self._clock
        slots = tuple([0 if adapter is None else place[adapter] for adapter in rows])
        return replace(reservation, adapter_slots=slots, adapter_loads=tuple(loads))

    def _free_slot(self, needed: Collection[Adapter]) -> int:
        """Whoever was admitted has one: admission counts slots as this does."""
        slots = self._slots
        unpinned = [slot for slot in range(1, len(slots)) if slot not in self._pins and slots[slot] not in needed]
        return min(unpinned, key=lambda slot: (slots[slot] is not None, self._used[slot], slot))

    def rolled_back(self, plan_id: int) -> None:
        """The assignment of the newest plan, never launched, is undone."""
        for slot, held, used in reversed(self._changed):
            self._slots[slot], self._used[slot] = held, used
        self._changed = []
        self._keep_pins(lambda pin: pin != plan_id)

    def abandoned(self, lost: Iterable[Reservation]) -> None:
        """Launched plans were lost: nobody knows whether their loads have run. Slots stay pinned until they have settled."""
        for load in [load for reservation in lost for load in reservation.adapter_loads]:
            if self._slots[load.slot] == load.adapter:
                self._slots[load.slot] = None

    def settle(self, unsettled: Collection[int], reserved: int | None) -> None:
        """Plans that have settled pin nothing any more."""
        self._keep_pins({*unsettled, reserved}.__contains__)

    def restart(self) -> None:
        """The device's memory starts anew; what may be named stays."""
        self._slots = [None] * len(self._slots)
        self._pins = {}

    def _keep_pins(self, is_kept: Callable[[int], bool]) -> None:
        kept = {slot: set(filter(is_kept, plans)) for slot, plans in self._pins.items()}
        self._pins = {slot: plans for slot, plans in kept.items() if plans}


def named(adapters: Iterable[Adapter]) -> str:
    """For sentences."""
    return ", ".join(f"{each.name} version {each.version}" for each in adapters) or "none"


def _order(adapter: Adapter) -> tuple[str, int]:
    return adapter.name, adapter.version
