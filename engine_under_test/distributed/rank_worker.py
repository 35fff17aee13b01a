"""One rank: joins the others, executes the driver's steps in their order, and acknowledges each.

Owns the loop of a rank and its life: it beats while it lives, and ends at once when the driver is gone. Never: which plan comes
next, or what becomes of a request.
"""

from __future__ import annotations

import importlib
import os
import select
import socket
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from engine_under_test.distributed.rank_collectives import CollectiveFailed, Collectives, go_to, meet, open_door
from engine_under_test.distributed.rank_config import RankConfig
from engine_under_test.distributed.rank_link import Link, LinkEnded
from engine_under_test.distributed.rank_messages import (
    Beat,
    Crashed,
    Executed,
    Joined,
    Meet,
    PhaseReached,
    RankPhase,
    Start,
    Step,
    Waiting,
)
from engine_under_test.distributed.rank_models import build, num_blocks_of
from engine_under_test.errors import ProtocolError, RunnerError

_Message = TypeVar("_Message")

DRIVER_GONE, CRASHED = 3, 4  # exit codes


def serve(end: socket.socket) -> int:
    """The life of a rank on this connection; its exit code."""
    link = Link(end)
    inbox = _Inbox(link)
    try:
        start = inbox.next(Start)
        rank = _Rank(start, link, inbox)
        threading.Thread(target=_beat, args=(link, rank, start), daemon=True).start()
        try:
            rank.join()
            rank.run()
        except LinkEnded:
            raise
        except Exception as error:
            is_echo = isinstance(error, CollectiveFailed)
            link.send(Crashed(start.generation, f"{type(error).__name__}: {error}", is_echo))
            return CRASHED
    except LinkEnded:
        pass
    return DRIVER_GONE


def _beat(link: Link, rank: _Rank, start: Start) -> None:
    """Says that the rank lives, and ends it when nobody is there to hear it, whatever else it is doing."""
    poll = select.poll()
    poll.register(link.fileno(), select.POLLRDHUP)
    while True:
        if poll.poll(start.config.patience.beat_s * 1000) or link.is_ended:
            os._exit(DRIVER_GONE)
        if not link.has_unsent:  # a driver that does not listen finds one beat more, not thousands
            link.post(Beat(start.generation, *rank.progress))


class _Inbox:
    """What the driver said, one by one."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._messages: list[object] = []

    def next(self, kind: type[_Message]) -> _Message:
        """Waits for the next message, which is of this kind."""
        while not self._messages:
            if self._link.is_ended:
                raise LinkEnded("the driver is gone")
            self._link.wait()
            self._messages += self._link.take()
        message = self._messages.pop(0)
        if not isinstance(message, kind):
            raise ProtocolError(f"a rank expects {kind.__name__} here, found {type(message).__name__}")
        return message


class _Rank:
    """A rank that knows who it is."""

    def __init__(self, start: Start, link: Link, inbox: _Inbox) -> None:
        self._start = start
        self._link = link
        self._inbox = inbox
        self._sequence = 0
        self._told_inside = True
        self._collectives = Collectives(start.rank, start.config.world_size, self._inside)
        self._tell: Callable[[PhaseReached], None] | None = None

    @property
    def progress(self) -> tuple[int, int]:
        """The last step, and the collectives of it that were begun."""
        return self._sequence, self._collectives.num_begun

    def join(self) -> None:
        """Meets the others and builds the runner."""
        config = self._start.config
        self._tell = _function(config.phases) if config.phases else None
        self._reach(RankPhase.JOINING)
        if config.world_size > 1:
            self._meet(config)
        self._runner, self._adapters = build(config, self._collectives)

    def _meet(self, config: RankConfig) -> None:
        start = self._start
        if start.rank == 0:
            host = self._link.local_host
            store, port = open_door(host)
            self._link.send(Waiting(start.generation, host, port))
        else:
            where = self._inbox.next(Meet)
            store = go_to(where.host, where.port, config.patience.join_s)
        # The driver, who sees all ranks, is to lose its patience first.
        meet(store, start.rank, config, 2 * config.patience.step_s)

    def run(self) -> None:
        """Executes steps until the driver leaves."""
        start, config = self._start, self._start.config
        self._link.send(Joined(start.generation, num_blocks_of(self._runner, config.block_size), config.block_size))
        while True:
            step = self._inbox.next(Step)
            if (step.generation, step.sequence) != (start.generation, self._sequence + 1):
                raise ProtocolError(
                    f"steps of generation {start.generation} come without a gap, found {step.generation}/{step.sequence} "
                    f"behind {self._sequence}; send each step to every rank, once"
                )
            self._sequence = step.sequence
            self._told_inside = False
            self._reach(RankPhase.BEFORE_PLAN)
            answer = self._execute(step)
            self._reach(RankPhase.BEFORE_REPLY)
            self._link.send(answer)

    def _execute(self, step: Step) -> Executed:
        plan = step.plan
        evidence: dict[str, Any] = {}
        try:
            if self._adapters is not None:
                self._adapters.take(step.adapters)
            launch = self._runner.launch(plan, step.reservation)
            result = launch.result()
            evidence["tokens"] = result.tokens
            evidence["told"] = result.logprobs, result.prompt_logprobs
            if self._start.config.shows_evidence:
                evidence |= _evidence(launch)
        except RunnerError as error:
            if not isinstance(error.__cause__, RunnerError | None):
                raise error.__cause__ from None  # not a refusal, so perhaps of this rank alone
            evidence = {"error": str(error), "to_blame": error.rows, "distrusts": error.distrusts}
        record = self._collectives.take_record()
        return Executed(step.generation, step.sequence, plan.plan_id, plan.generation, plan.row_ids(), record, **evidence)

    def _inside(self) -> None:
        if not self._told_inside:
            self._told_inside = True
            self._reach(RankPhase.IN_COLLECTIVE)

    def _reach(self, phase: RankPhase) -> None:
        if self._tell is not None:
            start = self._start
            argument = start.config.phases_argument
            self._tell(PhaseReached(phase, start.rank, start.generation, self._sequence, self._link.fileno(), argument))


def _evidence(launch: Any) -> dict[str, Any]:
    """What a launch read or computed, for whoever checks it."""
    if hasattr(launch, "cells"):
        return {"cells": launch.cells.tobytes(), "row_ends": launch.row_ends}
    logits = launch.logits.cpu().contiguous()
    return {"logits": (tuple(logits.shape), logits.numpy().tobytes())}


def _function(name: str) -> Callable[[PhaseReached], None]:
    module, _, attribute = name.partition(":")
    found: Callable[[PhaseReached], None] = getattr(importlib.import_module(module), attribute)
    return found
