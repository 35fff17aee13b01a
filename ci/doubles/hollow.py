"""A module that offers suites, but has none."""

from __future__ import annotations

from properties.suite import Suite

SUITES: tuple[Suite, ...] = ()
