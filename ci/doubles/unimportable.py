"""A module of suites that is there and does not import."""

from __future__ import annotations

raise ImportError("this module does not import")
