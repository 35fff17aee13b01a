"""The default of the seam `Clock`."""

from __future__ import annotations

import time


class SystemClock:
    """Monotonic seconds of this machine."""

    def now(self) -> float:
        return time.monotonic()
