"""`assay kv-store`: the remote KV pool as a process.

Owns the words and flags of the command. Never what the store does (`engine_under_test/distributed/kv_store.py`).
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import click

from engine_under_test.errors import BadInput

TOKEN_VARIABLE = "ASSAY_KV_TOKEN"


@click.command(name="kv-store", short_help="Run a remote KV pool.")
@click.option("--listen", default="127.0.0.1:0", show_default=True, metavar="HOST:PORT", help="Port 0 takes a free one.")
@click.option(
    "--token-file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="The shared token, needed to listen beyond loopback.  [$ASSAY_KV_TOKEN]",
)
@click.option(
    "--capacity-mib",
    type=click.IntRange(1),
    default=1024,
    show_default=True,
    help="For blocks; the machine's at most.",
)
@click.option("--max-connections", type=click.IntRange(1), default=256, show_default=True, help="Engines at a time.")
@click.option(
    "--lease", "lease_s", type=float, default=30.0, show_default=True, metavar="S", help="How long a transfer may rest."
)
@click.option("--until-eof", is_flag=True, help="End when standard input does, and so with the process that started it.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON lines: the address, and at the end what happened.")
def kv_store(
    listen: str,
    token_file: Path | None,
    capacity_mib: int,
    max_connections: int,
    lease_s: float,
    *,
    until_eof: bool,
    as_json: bool,
) -> None:
    """Run a remote pool of KV blocks, in memory, until SIGINT or SIGTERM. Listens on loopback unless there is a token."""
    from ci.environment import require_extra

    require_extra("connector", "a KV store")
    from engine_under_test.distributed.kv_store import ServerConfig, run_store
    from engine_under_test.distributed.store_session import MOST_LEASE_S, StoreLimits

    if not 0 < lease_s <= MOST_LEASE_S:
        raise BadInput(f"--lease must be more than 0 seconds and {MOST_LEASE_S:g} at most, found {lease_s}")
    most_mib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 20
    if capacity_mib > most_mib:
        raise BadInput(f"--capacity-mib must be {most_mib} at most, the memory of this machine, found {capacity_mib}; lower it")
    host, port = parse_address(listen)
    config = ServerConfig(
        host,
        port,
        token=read_token(token_file),
        capacity_bytes=capacity_mib << 20,
        max_connections=max_connections,
        limits=StoreLimits(max_block_bytes=min(4 << 20, capacity_mib << 20), lease_s=lease_s),
    )

    def say(found: tuple[str, int]) -> None:
        text = json.dumps({"host": found[0], "port": found[1]}) if as_json else f"kv-store listens on {found[0]}:{found[1]}"
        click.echo(text)

    stats = run_store(config, say, until_eof=until_eof)
    ended = sum(stats.faults.values())
    if as_json:
        told = {"accepted": stats.accepted, "turned_away": stats.turned_away, "ended": ended}
        click.echo(json.dumps({**told, "faults": dict(stats.faults.most_common(20))}))
    else:
        click.echo(f"kv-store ended: {stats.accepted} connections, {ended} ended by the store, {stats.turned_away} turned away")


def parse_address(text: str) -> tuple[str, int]:
    """HOST:PORT, an IPv6 host in brackets."""
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isascii() or not port.isdigit() or len(port) > 5 or int(port) > 65535:
        raise BadInput(f"--listen takes HOST:PORT with a port of 0 to 65535, as 127.0.0.1:7070, found {text!r}")
    is_bracketed = host.startswith("[") and host.endswith("]")
    host = host[1:-1] if is_bracketed else host
    if not host or {"[", "]"} & set(host) or (":" in host and not is_bracketed):
        raise BadInput(f"--listen takes HOST:PORT, an IPv6 host in brackets, as [::1]:7070, found {text!r}")
    return host, int(port)


def read_token(file: Path | None) -> bytes:
    """The token of the file, or else of the environment, or else none."""
    if file is None:
        return os.environ.get(TOKEN_VARIABLE, "").strip().encode()
    try:
        token = file.read_bytes().strip()
    except OSError as error:
        raise BadInput(f"--token-file names a readable file, found {str(file)!r} ({error.strerror})") from error
    if not token:
        raise BadInput(f"--token-file holds a shared token, but {str(file)!r} is empty; write one into it")
    return token
