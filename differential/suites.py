"""The suites of this folder, for whoever runs them."""

from __future__ import annotations

from differential.sampling_stats import SUITE_ID, check_sampler
from properties.suite import Suite

SUITES: tuple[Suite, ...] = (Suite(SUITE_ID, "sampler statistics", check_sampler, share_s=3.0),)
