"""When an engine tries to connect, by its own clock alone: to a port where nobody listens, to one that hangs up,
and to one that never answers.

Owns that little network and the times. Never judges (`properties/invariants/peers.py`).
"""

from __future__ import annotations

import socket
from typing import Final

from engine_under_test.distributed.tcp import TcpConfig, TcpTransport
from properties.kv_world import HandClock

STEP_S: Final = 0.01
SLACK_S: Final = 5 * STEP_S  # a try, and the news that it came to nothing, take a few steps


def when_refused(seconds: float) -> tuple[TcpConfig, tuple[float, ...]]:
    """Tries to connect to a store that is down."""
    with socket.socket() as held:  # bound and not listening: whoever connects is refused, and nobody else takes the port
        held.bind(("127.0.0.1", 0))
        config = TcpConfig("127.0.0.1", int(held.getsockname()[1]))
        clock = HandClock()
        transport = TcpTransport(config, clock)
        tries = _errors(transport, clock, seconds)
    return config, tuple(tries)


def when_hung_up(word: bytes, seconds: float) -> tuple[TcpConfig, tuple[float, ...]]:
    """Tries where something accepts, says a word, or none as a proxy before a store that is down, and hangs up."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.setblocking(False)
        config = TcpConfig("127.0.0.1", int(listening.getsockname()[1]))
        clock = HandClock()
        transport = TcpTransport(config, clock)
        tries = []
        for _ in range(round(seconds / STEP_S)):
            transport.poll()
            try:
                accepted, _ = listening.accept()
            except BlockingIOError:
                pass
            else:
                tries.append(clock.time)
                with accepted:
                    accepted.sendall(word)
            clock.time += STEP_S
        transport.close("the end")
    return config, tuple(tries)


def when_unanswered(seconds: float) -> tuple[TcpConfig, tuple[float, ...]]:
    """When tries were given up where nobody answers: a port whose queue of connections is full. The begin and the end of the
    watch are among them."""
    with socket.socket() as listening, socket.socket() as only:
        listening.bind(("127.0.0.1", 0))
        listening.listen(0)
        config = TcpConfig("127.0.0.1", int(listening.getsockname()[1]))
        only.connect(listening.getsockname())  # fills the queue
        clock = HandClock()
        transport = TcpTransport(config, clock)
        ends = [0.0, *_errors(transport, clock, seconds)]
        transport.close("the end")
    return config, (*ends, seconds)


def _errors(transport: TcpTransport, clock: HandClock, seconds: float) -> list[float]:
    """When it said that a try had come to nothing."""
    times = []
    for _ in range(round(seconds / STEP_S)):
        transport.last_error = ""
        transport.poll()
        if transport.last_error:
            times.append(clock.time)
        clock.time += STEP_S
    return times
