"""Storms: faults as values, what injects and heals each of them, clients and workloads.

Not here: what must hold (`properties/`), the loop that applies operations (`models/world.py`). Empty until faults of devices,
connectors and ranks join; faults of block memory, fences and lost plans are operations of `properties/op.py` already.
"""
