"""What must always hold, and the values it is judged from: operations, moments, histories, verdicts.

Here: `invariants/` over a moment, `checkers.py` over a history. Not here: models, loops, an engine. Start with `moment.py`.
"""
