"""Storms: faults as values, what injects and heals each of them, clients and workloads.

Not here: what must hold (`properties/`), the loop that applies operations (`models/world.py`). Start with `proxies.py` for
faults on connections; faults of block memory, fences and lost plans are operations of `properties/op.py`.
"""
