"""Executes plans: the runner protocol, the fingerprint runner, devices.

Here: what touches KV content. Not here: who may run (`scheduling/`), or which block belongs to whom (`kv/`).
Start reading at `runner.py`, then `fingerprint.py` beside docs/fingerprint.md.
"""
