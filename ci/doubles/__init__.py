"""Small suites with a known outcome, for the tests of the gate: each module offers a tuple `SUITES`.

Here: sound, failing, crashing, dying, slow and unrepeatable suites over no target at all. Not here: the plants of the gate's
self-proof, which are part of every run.
"""
