"""Sums over all ranks, by torch.distributed, with a record of which were done in which order.

Owns the process group of a rank. A sum of 64-bit words wraps, so it has the same bits in any order; a sum of floats comes to
the same bits on every rank (each piece is added up in one place and sent from there), but not to those of one rank alone.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Store, TCPStore  # public as torch.distributed.*, which its stubs do not say

from engine_under_test.distributed.rank_config import Backend, RankConfig
from engine_under_test.errors import AssayError


class CollectiveFailed(AssayError):
    """A collective ended with an error: most often because another rank is gone."""


class Collectives:
    """``inside`` is called in the middle of each collective: after it was begun, before its end is waited for."""

    def __init__(self, rank: int, world_size: int, inside: Callable[[], None]) -> None:
        self.rank = rank
        self.world_size = world_size
        self._inside = inside
        self._done: list[str] = []

    @property
    def num_begun(self) -> int:
        """Since the last record was taken."""
        return len(self._done)

    def take_record(self) -> tuple[str, ...]:
        """What was summed up since the last call, in order."""
        done, self._done = tuple(self._done), []
        return done

    def all_reduce(self, tensor: torch.Tensor, what: str) -> None:
        """`tensor` becomes the sum of all ranks' tensors, in place."""
        self._done.append(f"sum of {what} {'x'.join(map(str, tensor.shape))}")
        if self.world_size == 1:
            self._inside()
            return
        try:
            work = dist.all_reduce(tensor, async_op=True)
            self._inside()
            work.wait()
        except RuntimeError as error:
            raise CollectiveFailed(f"{self._done[-1]}: {error}") from error


def open_door(host: str) -> tuple[TCPStore, int]:
    """The store at which ranks meet, and its port. It listens at this address only; whoever reaches it is let in."""
    listener = socket.create_server((host, 0))
    port = listener.getsockname()[1]
    store = TCPStore(host, port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach())
    return store, port


def go_to(host: str, port: int, timeout_s: float) -> TCPStore:
    return TCPStore(host, port, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=timeout_s))


def meet(store: Store, rank: int, config: RankConfig, timeout_s: float) -> None:
    """Returns when all ranks have met."""
    backend, world_size = config.backend, config.world_size
    if backend is Backend.GLOO:
        os.environ["GLOO_SOCKET_IFNAME"] = config.interface
    dist.init_process_group(backend.value, store=store, rank=rank, world_size=world_size, timeout=timedelta(seconds=timeout_s))
