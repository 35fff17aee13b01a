"""Descriptors are waited for whatever their numbers, and for as long as was said."""

from __future__ import annotations

import os
import resource
import socket
from collections.abc import Iterator

import pytest

from engine_under_test.readiness import is_ready

_MANY = 1100  # `select.select` knows numbers below 1,024


@pytest.fixture
def far_pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """A connected pair whose descriptors have high numbers."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MANY + 100
    if hard != resource.RLIM_INFINITY and hard < wanted:
        pytest.skip(f"this machine allows {hard} open files, the test needs {wanted}; raise the hard limit (ulimit -Hn)")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    opened = [os.open(os.devnull, os.O_RDONLY) for _ in range(_MANY)]
    one, other = socket.socketpair()
    yield one, other
    for each in (one, other):
        each.close()
    for descriptor in opened:
        os.close(descriptor)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_descriptor_of_a_high_number_is_waited_for(far_pair: tuple[socket.socket, socket.socket]) -> None:
    one, other = far_pair
    assert one.fileno() > 1024
    assert not is_ready(one, timeout_s=0)
    assert is_ready(to_write=one, timeout_s=0)
    other.send(b"x")
    assert is_ready(one, timeout_s=0)
    assert is_ready(one.fileno(), one, timeout_s=5)


def test_the_end_of_a_peer_is_something_to_read() -> None:
    one, other = socket.socketpair()
    other.close()
    assert is_ready(one, timeout_s=0)
    one.close()


def test_nothing_to_wait_for_is_the_time_itself() -> None:
    assert not is_ready(timeout_s=0.01)
