"""How fast is this machine, now? A fixed loop of the kind of work that an engine's host side does.

Owns the loop and the time that it took where the floors were written down. A floor is scaled by the quotient, so that it
asks the same of a slower machine, and of this machine while others use it.
"""

from __future__ import annotations

import time

REFERENCE_S = 0.0080  # observed: fastest of 200 loops on the 2-core machine on which the floors were set


def calibrate() -> float:
    """Processor seconds that the loop takes."""
    began = time.process_time()
    _loop()
    return time.process_time() - began


def _loop() -> int:
    """Tuples, dictionaries, lists and attribute reads in the proportions of a scheduler step."""
    table: dict[tuple[int, int], list[int]] = {}
    for step in range(240):
        for row in range(64):
            blocks = table.setdefault((row, row & 3), [])
            blocks.append(step * 64 + row)
            if len(blocks) > 16:
                del blocks[:8]
        columns = [(key[0], key[1], len(blocks), blocks[-1]) for key, blocks in table.items()]
        flat = tuple(value for column in columns for value in column)
        total = sum(flat)
    return total
