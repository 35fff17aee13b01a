"""The engine that is verified: paged KV, prefix cache, continuous batching. Usable on its own; it knows no harness.

Here: types and seams first, then `engine.py`, the only place that changes state. Not here: anything that checks it.
Start reading at `types.py`, then `engine.py`.
"""
