"""A rank that is started by itself, in a container for instance, and dials its driver.

    python -m engine_under_test.distributed.rank_dial HOST PORT        the token of the driver in $ASSAY_RANK_TOKEN

Owns the greeting. It connects before it loads torch, so that ranks load at the same time; the driver reads nothing of anybody
who does not know the token.
"""

from __future__ import annotations

import os
import socket
import sys

TOKEN_VARIABLE = "ASSAY_RANK_TOKEN"
TOKEN_BYTES = 64


def main() -> None:
    host, port = sys.argv[1:3]
    end = socket.create_connection((host, int(port)), timeout=60.0)
    end.sendall(os.environ.pop(TOKEN_VARIABLE).encode())
    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    from engine_under_test.distributed.rank_worker import serve  # only now: it loads torch

    os._exit(serve(end))


if __name__ == "__main__":
    main()
