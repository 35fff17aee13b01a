"""Speed against absolute floors: `assay bench walk`, `scheduler`, `engine`, `attention`, `storm`.

Here: what is measured, the floors, the calibration that scales them to the machine. Not here: profilers, or any judgement of
correctness. Start reading at `bench.py`.
"""

from ci.bench.bench import run_bench

__all__ = ["run_bench"]
