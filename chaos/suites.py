"""The suites of this folder: simulated storms, and runs that look for nothing but false alarms of the race detector.

Owns sizes and floors. What a storm is stands in `chaos.storm`, how it is run in `chaos.run`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import islice

from chaos.detector_suite import run_race_detector
from chaos.faults import OF_THE_LINK, FaultKind, Kind
from chaos.memory_suite import run_memory, run_memory_of_transfers
from chaos.ranks_in_turn import check_ranks_in_turn
from chaos.run import StormRun, failure_of, run_storm
from chaos.spoiled_suite import run_spoiled
from chaos.storm import GRAMMAR_SHAPES, NUM_OPS, PCT_DEPTH, PCT_STEPS, REMOTE_SHAPES, SHAPES, WITHOUT_LINK, draw_storm
from chaos.transfers import TRANSFERS
from chaos.transfers_in_turn import run_transfers_in_turn
from differential.suites import with_extras
from engine_under_test.caps import LinkFault
from engine_under_test.events import Event, EventKind
from engine_under_test.execution.schedule import TURN, Chance, Priorities
from models.build import world_from
from models.compiled import IS_INSTALLED
from models.reach import Reach
from models.streamed_device import StreamedDevice
from models.walk import walk_ops
from properties.history import OpRecord
from properties.invariants import ALL
from properties.op import OpKind
from properties.suite import CheckResult, Failure, Figure, Label, Profile, Suite, SuiteContext
from properties.sums import Sums
from properties.verdict import Verdict

_STORMS = {Profile.QUICK: 3, Profile.PR: 24, Profile.NIGHTLY: 4000}
_DEVICE_OPS = {Profile.QUICK: 4_000, Profile.PR: 100_000, Profile.NIGHTLY: 1_000_000}
_FAULTS_FLOOR = {Profile.QUICK: 0, Profile.PR: 1, Profile.NIGHTLY: 300}  # of each kind; a miss by chance: 1 in 10^5
_RACE_CHECKS = tuple(each for each in ALL if {"races", "misdeclared"}.intersection(each.needs))
_STRIKES: Mapping[Kind, OpKind] = {  # the operations of a history by which a kind of fault strikes
    FaultKind.HELD_FENCES: OpKind.HOLD_FENCES,
    FaultKind.REFUSED_BLOCKS: OpKind.REFUSE_BLOCK,
    FaultKind.REFUSED_MEMORY: OpKind.REFUSE_MEMORY,
    FaultKind.LOST_PLANS: OpKind.ABANDON,
    FaultKind.STALE_RESULTS: OpKind.LAND_AGAIN,
    FaultKind.CACHE_RESETS: OpKind.RESET_CACHE,
    FaultKind.RESTARTS: OpKind.RESTART,
    FaultKind.ABORTS: OpKind.ABORT,
    FaultKind.ROLLBACKS: OpKind.ROLLBACK,
    FaultKind.FRAGMENTED_MEMORY: OpKind.FRAGMENT_MEMORY,
    FaultKind.SICK_ROWS: OpKind.SICK_ROW,
    FaultKind.SPOILED_SLOTS: OpKind.SPOIL,
    FaultKind.STUCK_ROWS: OpKind.STUCK_ROW,
}
_BEFALLS: Mapping[Kind, LinkFault] = {  # likewise, of the link: what befalls it
    FaultKind.LINK_STALLS: LinkFault.STALL,
    FaultKind.LINK_CUTS: LinkFault.CUT,
    FaultKind.LOST_MESSAGES: LinkFault.LOSE,
    FaultKind.REPEATED_MESSAGES: LinkFault.REPEAT,
    FaultKind.STORE_DEATHS: LinkFault.STORE_DIES,
    FaultKind.STORE_ROT: LinkFault.ROT,
}
_WITH_LINK = (
    *OF_THE_LINK,
    FaultKind.STREAM_DELAYS,
    FaultKind.PRIORITIES,
    FaultKind.ABORTS,
    FaultKind.RESTARTS,
    FaultKind.CACHE_RESETS,
    FaultKind.REFUSED_MEMORY,
    FaultKind.FRAGMENTED_MEMORY,
    FaultKind.SPOILED_SLOTS,
)
_REMOTE_OPS = 240
_DELAYS = (FaultKind.PRIORITIES, FaultKind.STREAM_DELAYS)  # the first of them that is active decides
_LATE = "operations that ran or were seen late"
_LATE_FLOOR = 500  # in profile pr
_TRANSFERS_FLOOR = {"loads begun": 150, "blocks loaded": 30, "loads that brought nothing": 40}  # in profile pr


@dataclass(slots=True)
class _Sums(Sums):
    """Of storms."""

    steps: int = 0

    def add(self, run: StormRun) -> None:
        world = run.driver.world
        self.examples += 1
        self.ops += world.ops
        self.noops += world.noops
        self.steps += world.checked_steps
        self.evaluations.update(world.evaluations)
        self.evaluations.update(run.driver.evidence)
        self.digests[run.storm.title] = run.digest
        self.missed += run.driver.crashed_checkers
        reached, differences = run.driver.reached()
        self.missed += differences
        self.reached.update(reached)
        self.reached["operations of the device"] += run.num_device_ops
        applied = [record.op for record in world.history.of(OpRecord) if not record.is_noop]
        did: Counter[OpKind | LinkFault] = Counter(op.kind for op in applied)
        did.update(tuple(LinkFault)[op.k] for op in applied if op.kind is OpKind.LINK)
        for kind in run.storm.plan.active:
            self.reached[f"storms with {kind}"] += 1
            if kind in _STRIKES or kind in _BEFALLS:
                self.reached[f"{kind}: operations that applied"] += did[_BEFALLS[kind] if kind in _BEFALLS else _STRIKES[kind]]
        if world.caps.has_remote:
            self._add_transfers(world.history.of(Event))
        late = sum(choice.delay >= 2 * TURN or choice.late > 0 for op in run.ops for choice in op.choices)
        self.reached[_LATE] += late
        chooser = next((kind for kind in _DELAYS if kind in run.storm.plan.active), None)
        if chooser is not None:
            self.reached[f"{chooser}: {_LATE}"] += late
        self.reached["steps"] += world.checked_steps

    def _add_transfers(self, events: Iterable[Event]) -> None:
        for event in events:
            if event.kind is EventKind.LOADING:
                self.reached["loads begun"] += 1
            elif event.kind is EventKind.LOADED:
                self.reached["blocks loaded"] += len(event.blocks)
            elif event.kind is EventKind.LOAD_ENDED and not event.tokens:
                self.reached["loads that brought nothing"] += 1


def run_storms(context: SuiteContext) -> CheckResult:
    """A fixed number of storms, up to the first violation, which is shrunk."""
    floors = {Reach.GRAMMAR_COMPLETE.value: 40} if IS_INSTALLED else {}
    return _run_storms("storms", context, WITHOUT_LINK, NUM_OPS, len(SHAPES) + len(GRAMMAR_SHAPES), floors)


def run_remote_storms(context: SuiteContext) -> CheckResult:
    """Likewise before a remote pool, whose link and store fail in every way."""
    return _run_storms("remote-storms", context, _WITH_LINK, _REMOTE_OPS, len(REMOTE_SHAPES), _TRANSFERS_FLOOR)


def _run_storms(
    name: str,
    context: SuiteContext,
    kinds: tuple[FaultKind, ...],
    num_ops: int,
    num_worlds: int,
    floors: Mapping[str, int] | None = None,
) -> CheckResult:
    total = _STORMS[context.profile]
    sums = _Sums()
    failure: Failure | None = None
    for number in range(total):
        run = run_storm(draw_storm(context.seed * 100_000 + number, kinds, num_ops))
        sums.add(run)
        context.progress(sums.examples, total)
        if run.violation is not None:
            failure = failure_of(run, context.shrink_s)
            break
    needed = _FAULTS_FLOOR[context.profile]
    for kind in kinds:
        strikes = (f"{kind}: operations that applied",) if kind in _STRIKES or kind in _BEFALLS else ()
        sums.require(dict.fromkeys((f"storms with {kind}", *strikes), needed))
    late = {f"{kind}: {_LATE}": _LATE_FLOOR for kind in _DELAYS if kind in kinds}
    if needed:
        sums.require({name: floor * total // _STORMS[Profile.PR] for name, floor in {**late, **(floors or {})}.items()})
    sums.require_ops()
    note = f"{sums.examples} storms in {num_worlds} worlds, {sums.steps} steps"
    return sums.result(name, [failure], note, _figures(name, sums))


def _figures(name: str, sums: _Sums) -> tuple[Figure, ...]:
    """The bound of PCT for the storms that ran by it."""
    runs = sums.reached[f"storms with {FaultKind.PRIORITIES}"]
    one = Priorities(0, PCT_STEPS, PCT_DEPTH).bound
    why = f"1/(n k^(d-1)), n = 5 threads, k = {PCT_STEPS} steps, d = {PCT_DEPTH}"
    whole = 1.0 - (1.0 - one) ** runs
    return (
        Figure(
            f"{name}.pct_bound, one storm", one, "1", Label.DERIVED, f"chance to meet a given bug of depth d at least; {why}"
        ),
        Figure(f"{name}.pct_bound, all of them", whole, "1", Label.DERIVED, f"likewise, over the {runs} storms that ran by it"),
    )


def run_orders(context: SuiteContext) -> CheckResult:
    """Correct runs at depths 0, 1 and 2, watched for races alone: whatever is found is a race, or a false alarm."""
    wanted = _DEVICE_OPS[context.profile]
    done, walks, evaluations, ops, noops = 0, 0, Counter[str](), 0, 0
    while done < wanted:
        seed = context.seed * 100_000 + walks
        label = list(SHAPES)[walks % len(SHAPES)]
        spec = {**SHAPES[label].spec(), "device": "streams"}
        chooser = Chance(seed) if walks % 2 else Priorities(seed, PCT_STEPS, PCT_DEPTH)
        world = world_from(spec, chooser=chooser, predicates=_RACE_CHECKS)
        world.run(islice(walk_ops(seed, SHAPES[label]), 1500))
        assert isinstance(world.device, StreamedDevice)
        walks += 1
        ops, noops = ops + world.ops, noops + world.noops
        evaluations.update(world.evaluations)
        done += world.device.simulated.num_run
        context.progress(min(done, wanted), wanted)
        if world.violation is not None:
            failure = Failure(world.violation, f"orders {label}#{seed:#x}", spec)
            return CheckResult("orders", Verdict.INVALID, examples=walks, ops=ops, failures=(failure,))
    return CheckResult(
        "orders",
        Verdict.VALID,
        examples=walks,
        ops=ops,
        noops=noops,
        reached={"operations of the device": done},
        invariants=dict(evaluations),
        note=f"{done} operations of the device without a false alarm",
    )


STORMS = Suite("storms", "simulated storms", run_storms, share_s=50.0, has_walk_seeds=True)
REMOTE_STORMS = Suite(
    "remote-storms", "storms before a remote pool", run_remote_storms, share_s=30.0, has_walk_seeds=True, extras=("connector",)
)
TRANSFERS_IN_TURN = Suite(
    "transfers-in-turn", "a load struck at every moment", run_transfers_in_turn, share_s=20.0, extras=("connector",)
)
ORDERS = Suite("orders", "order of accesses", run_orders, share_s=60.0)
RACE_DETECTOR = Suite("race-detector", "races told, against all pairs", run_race_detector, share_s=2.0)
RANKS_IN_TURN = Suite("ranks-in-turn", "played ranks, every blow at every moment", check_ranks_in_turn, share_s=6.0)
RANKS = Suite(
    "ranks",
    "real ranks, real deaths",
    partial(with_extras, "ranks", "chaos.rank_suite", "check_ranks"),
    profiles=frozenset({Profile.PR, Profile.NIGHTLY}),  # torch alone takes seconds to load
    share_s=15.0,
    extras=("model",),
)
RANKS_DOCKER = Suite(
    "ranks-docker",
    "ranks in containers",
    partial(with_extras, "ranks-docker", "chaos.container_suites", "check_containers"),
    profiles=frozenset({Profile.NIGHTLY}),  # few machines have a Docker engine, and make test has these blows where one is
    share_s=1200.0,
    extras=("model", "chaos"),
)
MEMORY = Suite("memory", "every allocation refused once", run_memory, share_s=11.0)
MEMORY_OF_TRANSFERS = Suite(
    "memory-of-transfers",
    "every allocation of transfers refused once",
    run_memory_of_transfers,
    share_s=7.0,
    extras=("connector",),
)
CONNECTORS = Suite(
    "connectors",
    "a real store behind every toxic",
    partial(with_extras, "connectors", "chaos.connector_suite", "check_connectors"),
    profiles=frozenset({Profile.PR, Profile.NIGHTLY}),  # ten seconds of processor time, and as long again of waiting
    share_s=18.0,
    extras=("connector", "chaos"),
)
HOSTILE_PEERS = Suite(
    "hostile-peers",
    "a store among hostile peers",
    partial(with_extras, "hostile-peers", "chaos.hostile_suite", "check_hostile_peers"),
    share_s=7.0,
    extras=("connector",),
)
SPOILED = Suite("spoiled-slots", "every committed slot spoiled once", run_spoiled, share_s=9.0)
SUITES: tuple[Suite, ...] = (
    STORMS,
    REMOTE_STORMS,
    TRANSFERS_IN_TURN,
    ORDERS,
    RACE_DETECTOR,
    MEMORY,
    MEMORY_OF_TRANSFERS,
    SPOILED,
    TRANSFERS,
    RANKS_IN_TURN,
    RANKS,
    RANKS_DOCKER,
    CONNECTORS,
    HOSTILE_PEERS,
)
