"""The console script `assay`, also as `python -m ci`: a Ctrl-C while modules are still being loaded ends in a sentence too.

Owns that, from its first line on, and quiet after the end; it imports next to nothing itself. Never: a command (`cli.py`).
"""

from __future__ import annotations

import os
import signal
import sys


def main() -> None:
    """Loads the command line and runs it."""
    try:
        from ci.ending import interrupts_wait_for_imports

        interrupts_wait_for_imports()
        from ci.cli import main as run

        run()
    except KeyboardInterrupt:  # in the midst of the imports above; what comes later is answered there
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        sys.stderr.write("assay: interrupted by Ctrl-C before anything was learned\n")
        sys.stderr.flush()
        os._exit(130)  # an orderly exit would say -2 where the interrupt left an exec of the standard library
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # all is said; what is left would tell of a Ctrl-C by a traceback


if __name__ == "__main__":
    main()
