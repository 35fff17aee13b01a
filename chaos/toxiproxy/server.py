"""An embedded server that speaks Toxiproxy's HTTP API, version 2, in a process of its own.

    python -m chaos.toxiproxy.server --listen 127.0.0.1:0      prints its address, serves until it is told to stop

A compatible stand-in for machines without a real one, and not Toxiproxy. It was written from the public description of the
API: "Toxics" and "HTTP API" in README.md, METRICS.md and CHANGELOG.md of https://github.com/Shopify/toxiproxy (2.x), and
from what the published source says where these are silent. The tests in this folder hold for both by their stated
tolerances, but the author had no real server to run them against. Never compared with a real one:

    every toxic   what is in flight while a toxic is added, changed or removed; which chunk is the first to feel it; which links
                  the dice choose (the probability is `toxicity`); 32 KiB reads as the unit of a chunk under load
    latency       the shape of the jitter (uniform, as in the source); delays under a full queue of 1024 chunks
    bandwidth     bursts within a tenth of a second; accuracy above some megabytes per second; a rate of 0 or below (here:
                  nothing passes)
    slow_close    which end of the connection sees the delay first; a removal during the delay (here: it ends at once)
    timeout       that each dropped chunk starts the time anew; that a removal closes the connections it held
    reset_peer    connections older than the toxic (here, as in the source: they are closed, not reset); an RST that meets data
                  still unread; a removal during the time (here: too late)
    slicer        the distribution of sizes; attributes that make no sense (here: at least a byte a piece)
    limit_data    a limit lowered below what has passed; more than one of them on a link
    disable       whether a client sees an end or a reset

And of the API: the wording after "bad request body:" and "listen tcp", Content-Type of errors (here always JSON),
extra fields of newer versions, metrics while a connection is open
(here: counted at once) and of deleted proxies (here: gone). Deliberately different: an address
without a host means loopback, a body may have 1 MiB, /metrics needs no flag.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import random
import signal
import sys
from collections.abc import Sequence

from chaos.toxiproxy.address import Address, AddressError, address_of, listen_on, parse_address, reason
from chaos.toxiproxy.api import Api
from chaos.toxiproxy.doors import Doors
from chaos.toxiproxy.owner import owner_is_gone

_USAGE = 64


async def serve(where: Address, owner: int | None, chance: random.Random) -> None:
    """Until SIGTERM, SIGINT, or the end of the process ``owner``. Prints one line: the address."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    api = Api(chance)
    listener = await listen_on(where)
    server = await asyncio.start_server(Doors(api.answer).converse, sock=listener)
    sys.stdout.write(f"{address_of(listener)}\n")
    sys.stdout.flush()
    waiting = [asyncio.create_task(_until(stop))]
    if owner is not None:
        waiting.append(asyncio.create_task(owner_is_gone(owner)))
    await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    for task in waiting:
        task.cancel()
    server.close()
    await api.close()


async def _until(stop: asyncio.Event) -> None:
    await stop.wait()


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m chaos.toxiproxy.server", description="A stand-in for Toxiproxy's server.")
    parser.add_argument("--listen", default="127.0.0.1:8474", metavar="HOST:PORT", help="where the API is; port 0 takes any")
    parser.add_argument("--owner", type=int, metavar="PID", help="the parent process: the server ends when it does")
    parser.add_argument("--seed", type=int, help="of jitter, slices and toxicity; other clocks still differ")
    options = parser.parse_args(arguments)
    try:
        asyncio.run(serve(parse_address(options.listen), options.owner, random.Random(options.seed)))
    except AddressError as error:
        return _refuse(f"--listen takes HOST:PORT, found {options.listen!r}: {error}", _USAGE)
    except OSError as error:
        return _refuse(f"can not listen on {options.listen}: {reason(error)}; choose another with --listen HOST:PORT", 1)
    return 0


def _refuse(sentence: str, code: int) -> int:
    with contextlib.suppress(OSError):
        sys.stderr.write(f"{sentence}\n")
    return code


if __name__ == "__main__":
    exit_code = main(sys.argv[1:])
    with contextlib.suppress(OSError):
        sys.stdout.flush()
    os._exit(exit_code)  # every socket is closed by now; nothing is worth waiting for
