"""The command `assay`: gate, replay, props, mutants, bench, and the reports that they write.

Here: the composition root, processes, verdict files, pictures. Not here: anything that decides whether an engine is right;
that is in `properties/` and `models/`. Start reading at `cli.py`, then `gate.py`.
"""
