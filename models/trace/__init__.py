"""A real workload: requests of a recorded service, run through target, models and invariants.

Here: the loader and its scaling rule, the infinite-cache oracle, the workload runner and its suite. Not here: generated
loads (`models.walk`), speed. Start with `requests.py`; where the data comes from stands in `NOTICE.md`.
"""
