"""What executes a plan on a device: runners, and the device seam with its default.

Not here: what is planned (`scheduling/`) or which block is whose (`kv/`). Start reading at `runner.py`,
then `fingerprint.py` (numpy alone), then `transformer.py` (torch, the extra `model`).
"""
