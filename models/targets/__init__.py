"""Targets that live in the harness, so that models and machines are shown to drive more than one engine.

Not here: the engine under test (`engine_under_test.adapters`). Start with `radix.py`.
"""
