"""A device of the harness whose tokens and cells come from a group of ranks, for a World that judges them as any other.

Beside the group runs a store of one rank, for what only a store can show (which slots changed). A World over it checks ranks
with the whole catalogue: cells and tokens against the law, bit for bit.
"""

from __future__ import annotations

from dataclasses import replace

from engine_under_test.caps import Caps
from engine_under_test.distributed.ranks import Ranks
from models.device import Device, Flight
from properties.moment import Execution


class RankDevice(Device):
    """See the module. ``group``: of the size of the target's pool, with `shows_evidence`."""

    def __init__(self, caps: Caps, group: Ranks) -> None:
        self._group = group
        super().__init__(caps)

    def restart(self, keeps_content: bool = False) -> None:
        """See `Device.restart`."""
        super().restart(keeps_content)
        if not keeps_content:
            self._group.restart()

    def _run(self, flight: Flight) -> Execution:
        execution = super()._run(flight)
        launch = self._group.launch(flight.step.plan, flight.step.reservation)
        return replace(execution, result=launch.result(), cells=launch.cells, row_ends=launch.row_ends)
