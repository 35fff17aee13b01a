"""Chooses tokens from logits, with noise by address.

Here: the sampler and the default noise. Not here: logits (`execution/`), or when a choice ends (`engine.py`).
Start reading at `sampler.py`, beside docs/fingerprint.md ("Next token").
"""
