"""The Hypothesis state machines: they decide which operation comes next, a World decides whether what happened was right.

Not here: what a request looks like (`models.strategies`), what must hold (`properties.invariants`), how much is enough
(`models.reach`). Start with `portable.py`, then `engine.py`; `driving.py` applies operations, `running.py` runs machines.
"""
