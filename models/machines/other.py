"""The portable machine in the worlds of an engine written by others.

Adds to its rules what hurts such an engine: everybody who runs is cancelled at once, and, where the family says so, requests
that can never fit.
"""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import initialize

from engine_under_test.types import Request, SamplingParams
from models.machines.portable import PortableMachine
from models.others import Family
from models.prompts import prompt
from models.strategies import Traits
from properties.op import Op, OpKind


class OtherMachine(PortableMachine):
    """``family`` is set by `machine_of`."""

    family: Family

    @initialize(data=st.data())
    def build(self, data: st.DataObject) -> None:
        self.driver = self.drive(data.draw(self.family.specs(), label="world"))
        self.traits = Traits(choices=self.family.choices, sampling=data.draw(st.booleans(), label="sampling"))
        self.now = 0.0
        self.accepted = []

    def moves(self) -> dict[str, int]:
        found = super().moves()
        if self.family.outgrows and "add" in found:
            found["add_too_long"] = 2
        if self.world.snapshot.running and self.world.snapshot.waiting:
            found["abort_who_runs"] = 1
        return found

    def abort_who_runs(self, _data: st.DataObject) -> None:
        """Only who waits is left."""
        waiting = {sequence.request_id for sequence in self.world.snapshot.waiting}
        names = dict.fromkeys(sequence.request_id for sequence in self.world.snapshot.running)
        for name in [name for name in names if name not in waiting]:
            self.do(Op(OpKind.ABORT, request_id=name))

    def add_too_long(self, data: st.DataObject) -> None:
        """More than the whole pool, by its prompt or by what it asks for."""
        caps = self.world.caps
        pool = caps.num_blocks * caps.block_size
        length = data.draw(st.sampled_from([1, caps.block_size, pool - 1, pool, pool + 1]), label="length")
        sampling = SamplingParams(max_tokens=pool - length + 2 if length <= pool else 1)
        request = Request(self.unused()[0], prompt(length, caps.vocab_size), sampling)
        self.do(Op(OpKind.ADD, request=request))
        self.accepted.append(request)


def machine_of(family: Family) -> type[OtherMachine]:
    """The machine in the worlds of one family."""
    return type(f"OtherMachine_{family.label}", (OtherMachine,), {"family": family})
