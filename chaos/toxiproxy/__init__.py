"""Faults on TCP connections through Toxiproxy's HTTP API: an embedded server, and what finds a real one.

Start with `server.py` (what the embedded server is, and what of it was never compared), then `choosing.py`. Harness code
drives either through `chaos/proxies.py` only. Not here: when a fault fires, what must hold while it does.
"""
