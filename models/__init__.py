"""Reference models that judge, the law of the fingerprint model, World (the only loop), machines and walks.

Not here: what must hold (`properties/invariants`), the engine. Start reading at `world.py`, then `facts.py`.
"""
