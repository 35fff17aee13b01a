"""Fixtures of this folder: one Toxiproxy for a test process, the best that the environment offers, and an upstream; and what
becomes of tests that need a Docker engine where there is none: skipped, or failed if ASSAY_DOCKER says that it is required. No
test of real processes or sockets goes on for ever: each is ended, and says where it stood.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator

import pytest

from chaos.doubles import Upstream
from chaos.proxies import Proxies, Proxy, open_proxies
from chaos.rank_containers import engine
from chaos.watchdog import Hang, within
from engine_under_test.errors import AssayError

_LONGEST_S = 600.0  # of a test: many times what it takes on a busy machine


@functools.cache
def why_no_engine() -> str:
    """One sentence with what to do, or "" if an engine answers."""
    try:
        engine().close()
    except AssayError as error:
        return str(error)
    return ""


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Whoever runs `.ci/run` has been told that there is an engine; then a test that needs it is never left out."""
    if item.get_closest_marker("docker") is None or not (reason := why_no_engine()):
        return
    if os.environ.get("ASSAY_DOCKER") == "required":
        pytest.fail(f"ASSAY_DOCKER=required, but {reason}", pytrace=False)
    pytest.skip(reason)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    try:
        with within(_LONGEST_S):
            yield
    except Hang as hang:
        pytest.fail(f"{item.name}: {hang}")


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
