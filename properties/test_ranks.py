"""Ranks compute as one runner: the same cells and tokens, in any number; who is silent is known exactly; links never block."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from engine_under_test import (
    Adapter,
    Engine,
    EngineConfig,
    FingerprintRunner,
    Media,
    Plan,
    Request,
    Reservation,
    SamplingParams,
)
from engine_under_test.distributed.rank_config import FingerprintModel, LlamaFile, Patience, RankConfig
from engine_under_test.distributed.rank_launch import RankLaunch
from engine_under_test.distributed.rank_link import Link
from engine_under_test.distributed.rank_processes import Processes
from engine_under_test.distributed.rank_vitals import Vitals
from engine_under_test.distributed.ranks import Ranks
from engine_under_test.drafting import Drafting
from engine_under_test.errors import ConfigError, RankLost, RunnerError
from engine_under_test.events import RankEvent, RankEventKind
from engine_under_test.sampling.proposers import PromptLookup
from engine_under_test.sampling.speculation import Ask, Declaration, Knowledge, Proposal, Proposer, Repair
from engine_under_test.seams import Noise
from properties.checkers import merged, run_checkers
from properties.history import History, parse
from properties.rank_checkers import AGREEMENT
from properties.verdict import Verdict

LORA = Adapter("lora", 2)
POOL = EngineConfig(num_blocks=40, block_size=4, vocab_size=64, adapters=(LORA,), max_tokens_per_step=24, max_num_seqs=6)
REQUESTS = (
    Request("greedy", tuple(range(13)), SamplingParams(max_tokens=9)),
    Request("warm", tuple(range(8)), SamplingParams(max_tokens=9, temperature=1.0, seed=7, n=2)),
    Request("tuned", (5, 0, 7), SamplingParams(max_tokens=6, temperature=0.7, top_k=9, top_p=0.9), adapter=LORA),
    Request("seen", (1, 2, 2, 3, 0, 9), SamplingParams(max_tokens=6), media=(Media("sha256:cat", 1, 2),)),
    Request("long", tuple(i % 64 for i in range(60)), SamplingParams(max_tokens=5)),
)


@pytest.fixture(scope="module")
def processes() -> Iterator[Processes]:
    """One nursery for all groups of this module."""
    made = Processes()
    yield made
    made.close()


def config_of(world_size: int) -> RankConfig:
    return RankConfig(world_size, FingerprintModel(POOL.vocab_size), POOL.num_blocks, POOL.block_size, shows_evidence=True)


class Twins:
    """A runner that hands each plan to a group and to one rank, and keeps what both read."""

    def __init__(self, group: Ranks) -> None:
        self._group = group
        self._plain = FingerprintRunner(POOL.num_blocks, POOL.block_size, POOL.vocab_size)
        self.cells: list[tuple[bytes, bytes]] = []

    def launch(self, plan: Plan, reservation: Reservation) -> RankLaunch:
        """See `runner.Runner`."""
        theirs, ours = self._group.launch(plan, reservation), self._plain.launch(plan, reservation)
        assert theirs.result() == ours.result()
        assert theirs.row_ends == ours.row_ends
        self.cells.append((theirs.cells.tobytes(), ours.cells.tobytes()))
        return theirs


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_any_number_of_ranks_reads_and_samples_what_one_does_bit_for_bit(world_size: int, processes: Processes) -> None:
    told: list[RankEvent] = []
    with Ranks(config_of(world_size), processes, tell=told.append) as group:
        twins = Twins(group)
        engine = Engine(POOL, twins)
        for request in REQUESTS:
            assert engine.submit(request).is_accepted
        while engine.has_work:
            engine.step()
    assert len(twins.cells) >= 10
    assert all(theirs == ours for theirs, ours in twins.cells)
    history = History(records=told)
    again = parse("".join(line + "\n" for line in history.lines()))
    assert merged(run_checkers(again, (AGREEMENT,))) is Verdict.VALID
    collectives = {event.collectives for event in told if event.kind is RankEventKind.EXECUTED}
    assert any(len(each) == 2 for each in collectives)  # a sum behind each layer of the model


class Even:
    """Names the first two tokens, and says that they came from a law in which all are alike: to be judged alike everywhere."""

    declaration = Declaration("even", 2, Knowledge.FULL)

    def propose(self, asks: Sequence[Ask], noise: Noise) -> Proposal:
        del noise
        drafts = tuple(tuple(range(min(ask.width, 2))) for ask in asks)
        return Proposal(drafts, np.full((sum(map(len, drafts)), POOL.vocab_size), 1 / POOL.vocab_size))

    def repair(self, repairs: Sequence[Repair]) -> None:
        """Nothing is kept."""


@pytest.mark.parametrize("proposer", [PromptLookup(3), Even()], ids=["certain", "drawn from a law"])
def test_ranks_verify_drafts_as_one_runner_does(proposer: Proposer, processes: Processes) -> None:
    drafting = Drafting(proposer)
    with Ranks(config_of(2), processes) as group:
        engine = Engine(POOL, Twins(group), drafting=drafting)
        for request in REQUESTS:
            assert engine.submit(request).is_accepted
        while engine.has_work:
            engine.step()
    assert drafting.num_proposed > 0


@pytest.mark.parametrize("depth", [1, 2])
def test_plans_in_flight_come_back_in_order(depth: int, processes: Processes) -> None:
    config = replace(POOL, max_plans_in_flight=depth + 1)
    with Ranks(config_of(2), processes) as group:
        ours, plain = Engine(config, group), Engine(POOL, FingerprintRunner(POOL.num_blocks, POOL.block_size, POOL.vocab_size))
        found = []
        for engine in (ours, plain):
            tokens: dict[tuple[str, int], tuple[int, ...]] = {}
            for request in REQUESTS:
                engine.submit(request)
            while engine.has_work:
                engine.step()
            for output in engine.take_outputs():
                key = output.request_id, output.choice
                tokens[key] = tokens.get(key, ()) + output.token_ids
            found.append(tokens)
    assert found[0] == found[1]


def test_a_plan_that_every_rank_refuses_fails_alone(processes: Processes) -> None:
    plan = Plan(1, 0, (REQUESTS[0],), (0,), (1,), (0,), (0,), (2,), (0, 1), (0,), (True,), ((),))
    with Ranks(config_of(2), processes) as group:
        refused = group.launch(plan, Reservation(1, ((1,),), (4, 5000), ((1,),)))
        with pytest.raises(RunnerError, match=r"all ranks: .*slots lie in the store"):
            refused.result()
        assert not group.is_broken
        again = replace(plan, plan_id=2)
        assert group.launch(again, Reservation(2, ((1,),), (4, 5), ((1,),))).result().plan_id == 2


def test_a_closed_group_has_no_processes_and_refuses_plans(processes: Processes) -> None:
    group = Ranks(config_of(2), processes)
    pids = [int(process.name.split()[1]) for process in group.processes]
    group.close()
    assert not any(os.path.exists(f"/proc/{pid}") for pid in pids)
    with pytest.raises(RunnerError, match="was closed"):
        group.launch(Plan(1, 0, (), (), (), (), (), (), (), (), (), ()), Reservation(1, (), (), ()))


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"world_size": 3}, "take 1, 2 or 4"),
        ({"world_size": 0}, "world_size of a group of ranks must be"),
        ({"num_blocks": 2.5}, "num_blocks of a group of ranks must be"),
        ({"phases": "nowhere"}, "module:function"),
    ],
    ids=["heads that do not come out even", "no rank", "half a block", "a name without a function"],
)
def test_a_group_that_can_not_be_is_refused(changes: dict[str, Any], rule: str) -> None:
    with pytest.raises(ConfigError, match=rule):
        replace(config_of(1), **changes)


def test_a_rank_that_can_not_read_its_weights_is_named_with_the_reason(processes: Processes) -> None:
    with pytest.raises(RankLost, match=r"rank \d \(process \d+\): failed: BadInput: .*nowhere"):
        Ranks(replace(config_of(1), model=LlamaFile("/nowhere/at/all.gguf")), processes)


# Silence, on a clock that stands where it is put


def test_silence_is_known_at_its_second_and_not_before() -> None:
    vitals = Vitals((0, 1), 10.0, now=100.0)
    vitals.heard(1, 104.0)
    for now in np.arange(100.0, 110.0, 0.5):
        vitals.listen(float(now), 1.0)
        assert vitals.silent(float(now)) == ()
    assert vitals.silent(110.0) == (0,)
    assert vitals.silent(113.5) == (0,)
    assert vitals.silent(114.0) == (0, 1)


def test_a_driver_that_was_away_blames_nobody_for_it() -> None:
    vitals = Vitals((0,), 10.0, now=0.0)
    vitals.listen(1000.0, 1.0)
    assert vitals.silent(1000.0) == ()
    for now in range(1001, 1009):
        vitals.listen(float(now), 1.0)
        assert vitals.silent(float(now)) == ()
    assert vitals.silent(1009.0) == (0,)


def test_beats_that_are_too_rare_for_the_silence_are_refused() -> None:
    with pytest.raises(ConfigError, match="at least four beats"):
        Patience(beat_s=1.0, silence_s=3.0)


# Links


def test_a_peer_that_does_not_read_holds_nobody_up_and_loses_nothing() -> None:
    one, two = (Link(end) for end in socket.socketpair())
    sent = [os.urandom(1 << 20) for _ in range(3)]
    for message in sent:
        one.post(message)  # far more than a socket takes
    assert one.has_unsent
    found: list[object] = []
    while len(found) < len(sent):
        one.flush()
        found += two.take()
    assert found == sent
    for link in (one, two):
        link.close()


def test_what_was_said_before_the_end_is_still_heard() -> None:
    one, two = (Link(end) for end in socket.socketpair())
    one.post("last words")
    one.close()
    assert two.take() == ["last words"]
    assert two.is_ended
    two.close()
