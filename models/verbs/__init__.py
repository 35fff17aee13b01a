"""What each operation does to a world: verbs on plans, verbs of users, faults with their heal, and whole rounds of these.

Not here: which verb an operation is (`models.world`), what is true of the target (`models.facts`), what must hold
(`properties.invariants`). Each verb returns whether it did something. Start with `acting.py`, then `plans.py`.
"""
