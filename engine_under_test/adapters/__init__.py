"""Engines behind the target protocol: `base.py` is the protocol, `ours.py` our engine.

Not here: targets that exist to test the harness (`models/targets`). Start reading at `base.py`.
"""
