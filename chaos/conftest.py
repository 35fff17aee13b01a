"""Fixtures of this folder: one Toxiproxy for a test process, the best that the environment offers, and an upstream."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from chaos.doubles import Upstream
from chaos.proxies import Proxies, Proxy, open_proxies


@pytest.fixture(scope="session")
def proxies() -> Iterator[Proxies]:
    with open_proxies(os.environ) as opened:
        yield opened


@pytest.fixture
def upstream() -> Iterator[Upstream]:
    with Upstream() as served:
        yield served


@pytest.fixture
def proxy(proxies: Proxies, upstream: Upstream) -> Iterator[Proxy]:
    made = proxies.create("under-test", upstream.address)
    yield made
    made.remove()
