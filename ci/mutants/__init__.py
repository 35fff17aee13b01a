"""The tester is tested: known bugs put back into the source at import time, in a child process, and hunted.

Here: mutants as data, the loader that applies one, the hunt and its kill table. Not here: any switch in the engine, any suite
that knows of a mutant. Start reading at `mutant.py`, then `loader.py`, `child.py`, `runner.py`.
"""
