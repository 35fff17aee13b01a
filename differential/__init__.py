"""Compares the engine with what is known to be right: laws, and references that do without its cleverness.

Here: the error budget of statistical tests, and the sampler's statistics. Not here: invariants of a step (`properties/`).
Start reading at `suites.py`, then `error_budget.py`.
"""
