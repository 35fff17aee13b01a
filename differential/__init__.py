"""Comparisons with an independent truth: sampling statistics with a stated power, and their error budget.

Not here: invariants of one run (`properties/`). Start reading at `error_budget.py`, then `sampling_stats.py`.
"""
