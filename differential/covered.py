"""The suite `covering-array`: all that an engine can do, in pairs, each row of the array against the eager reference.

A row (`covering.py`) is an engine on a tiny language model, whole or split over processes, that serves two waves of requests.
Each token is judged by the law
of the reference's float64 logits behind the tokens in front of it, with the adapter merged into the weights and the grammar's
language put together by hand: token by token where the seed decides (SE-1, SE-2), and with drafts that were drawn, where it
does not, by distribution (ST-1): what stands below a token in its law, spread over its own share, is uniform. Never: a second
try.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from itertools import islice

import numpy as np
import numpy.typing as npt
import torch

from differential.adapted_world import merged
from differential.compare import Emitted, endings, tolerance_of
from differential.covering import REMOTE, Row, array, ranks_of, uncovered
from differential.error_budget import Ledger
from differential.preempting import PreemptingScheduler
from differential.reached import count_event
from differential.reference import reference_logits
from differential.said import Said, Users, continuing
from differential.threads import one_thread
from differential.uniformity import uniform_statistic
from engine_under_test.book import Book
from engine_under_test.config import EngineConfig
from engine_under_test.distributed.connector import Connector
from engine_under_test.distributed.rank_config import Patience, RandomLlama, RankConfig
from engine_under_test.distributed.rank_processes import Launcher, Processes
from engine_under_test.distributed.ranks import Ranks
from engine_under_test.distributed.store_pool import StorePool
from engine_under_test.distributed.store_session import StoreShelf
from engine_under_test.drafting import Drafting
from engine_under_test.engine import Engine
from engine_under_test.errors import RankLost
from engine_under_test.events import Event, EventKind
from engine_under_test.execution.adapter_slots import AdapterLibrary
from engine_under_test.execution.runner import Runner
from engine_under_test.execution.transformer import TransformerRunner
from engine_under_test.kv.transaction import KvTransaction
from engine_under_test.model.lora import LoraWeights, random_lora
from engine_under_test.model.weights import LlamaConfig, LlamaWeights, tiny_random
from engine_under_test.remote import RemotePrefixes
from engine_under_test.sampling.draft_model import DraftModel
from engine_under_test.sampling.grammar import CompiledGrammars
from engine_under_test.sampling.proposers import PromptLookup, Scripted
from engine_under_test.types import Adapter, History, Request, SamplingParams
from models.law_of_adjustments import adjusted, steps_of
from models.law_of_filters import Address, kept, masked, next_token
from models.remote_side import PromptLink
from properties.grammar_cases import CASES, STOPS, TEXTS, VOCAB_SIZE
from properties.invariants.predicate import violation
from properties.kv_sizes import engine_end, store_end
from properties.kv_world import HandClock
from properties.suite import CheckResult, Failure, Profile, SuiteContext
from properties.verdict import Verdict, Violation, verdict_of

SUITE_ID = "covering-array"
PASSES = {Profile.QUICK: 1, Profile.PR: 1, Profile.NIGHTLY: 30}  # through the array, each with requests of its own
_MOST_RANKS = {Profile.QUICK: 2, Profile.PR: 2, Profile.NIGHTLY: 4}
_QUICK_ROWS = 8
_MAX_TOKENS = 10
_SHAPE = LlamaConfig(VOCAB_SIZE, 48, 2, 4, 2, 16, 64, ties_head=False)
_DRAFT_SHAPE = LlamaConfig(VOCAB_SIZE, 24, 1, 2, 1, 12, 32, ties_head=False)
_ADAPTERS = (Adapter("one", 1), Adapter("two", 3))
_BLOCKS, _BLOCK, _SLOTS = 160, 4, 3
_PATIENCE = Patience(silence_s=60.0)  # nothing befalls the ranks, on a machine that may do ten other things
_OPTIONS = {
    "greedy": SamplingParams(),
    "sampled": SamplingParams(temperature=0.9),
    "filtered": SamplingParams(temperature=1.3, top_k=12, top_p=0.9, min_p=0.02),
    "penalised": SamplingParams(temperature=1.0, repetition_penalty=1.3, presence_penalty=0.5, logit_bias=((3, 1.0),)),
}


@lru_cache(maxsize=8)
def weights_of(seed: int, adapter: Adapter | None) -> LlamaWeights:
    """Of the reference: merged with the adapter."""
    weights = tiny_random(_SHAPE, seed)
    return weights if adapter is None else merged(weights, lora_of(adapter, seed))


def lora_of(adapter: Adapter, seed: int) -> LoraWeights:
    number = _ADAPTERS.index(adapter)
    return random_lora(_SHAPE, seed + 1000 * (number + 1), rank=2 + number, scale=1.0 + number)


@dataclass(slots=True)
class Case:
    """A row of the array with its requests."""

    row: Row
    seed: int
    grammars: CompiledGrammars
    launcher: Launcher
    reached: Counter[str] = field(default_factory=Counter)

    def is_decided(self, said: Said) -> bool:
        """Whether the request's seed decides its tokens."""
        return self.row.speculation != "drawn drafts" or said.request.sampling.temperature == 0

    def waves(self) -> tuple[list[Request], list[Request]]:
        """Requests, and some more with the same prompts, which are in the cache by then."""
        chance = random.Random(f"{self.row} {self.seed}")
        text = [chance.randrange(VOCAB_SIZE) for _ in range(24)]
        spec = None if self.row.grammar == "free" else CASES[self.row.grammar].spec
        sampling = replace(
            _OPTIONS[self.row.options],
            max_tokens=_MAX_TOKENS, n=3 if self.row.fork == "three choices" else 1, grammar=spec, stop_token_ids=STOPS,
        )  # fmt: skip
        adapters = (None, *_ADAPTERS[: ("no adapter", "one adapter", "two adapters").index(self.row.adapter)])
        made = []
        for number in range(8 if self.row.batch == "batch of 8" else 4):
            prompt = (*text[: chance.choice((5, 9, 14, 20))], *(chance.randrange(VOCAB_SIZE) for _ in range(3)))
            adapter = adapters[number % len(adapters)]
            made.append(Request(f"a{number}", prompt, replace(sampling, seed=chance.getrandbits(64)), adapter=adapter))
        again = [
            replace(each, request_id=f"b{each.request_id}", sampling=replace(each.sampling, seed=chance.getrandbits(64)))
            for each in made[::3]
        ]
        return made, again

    def serve(self, *, plain: bool = False) -> list[Said]:
        """What came of every choice; ``plain``: by one runner, without drafts. RankLost if ranks that nothing befell are."""
        with self._runner(plain=plain) as runner:
            return self._serve(runner, plain=plain)

    def _serve(self, runner: Runner, *, plain: bool) -> list[Said]:
        waves = self.waves()
        engine = self._engine(runner, [*waves[0], *waves[1]], plain=plain)
        users = Users(engine)
        for wave in waves:
            if self.row.ranks == REMOTE:
                engine.reset_cache()  # what the second wave finds lies in the pool alone
            for request in wave:
                users.ask(request)
            turns = 0
            while engine.has_work and turns < 2000:
                engine.step()
                turns += 1
            users.hear()
        return list(users.choices.values())

    @contextmanager
    def _runner(self, *, plain: bool) -> Iterator[Runner]:
        """One, or a group of ranks that compute as one."""
        library = AdapterLibrary(_SHAPE)
        for adapter in _ADAPTERS:
            library.add(adapter, lora_of(adapter, self.seed))
        if plain or not (world_size := ranks_of(self.row.ranks)):
            weights, grammars = tiny_random(_SHAPE, self.seed), self.grammars
            yield TransformerRunner(weights, _BLOCKS, _BLOCK, grammars=grammars, adapters=library, num_adapter_slots=_SLOTS)
            return
        model = RandomLlama(asdict(_SHAPE), self.seed)
        config = RankConfig(
            world_size, model, _BLOCKS, _BLOCK, patience=_PATIENCE, grammar_texts=TEXTS, num_adapter_slots=_SLOTS
        )
        with Ranks(config, self.launcher, adapters=library) as group:
            yield group

    def _engine(self, runner: Runner, requests: Sequence[Request], *, plain: bool) -> Engine:
        row = self.row
        is_chunked = row.chunks == "chunks"
        config = EngineConfig(
            num_blocks=_BLOCKS, block_size=_BLOCK, vocab_size=VOCAB_SIZE, adapters=_ADAPTERS, max_active_adapters=_SLOTS,
            max_num_seqs=3 if row.batch == "alone" else 24, max_tokens_per_step=24 if is_chunked else 256,
            max_plans_in_flight=int(row.depth[-1]) + 1, prefix_cache=row.cache == "cached", batching=row.batch != "alone",
            chunking=is_chunked,
        )  # fmt: skip
        scheduler = PreemptingScheduler(requests, (1, 4)) if row.preemption == "preempted" else None
        drafting = None if plain else self._drafting()
        remote = self._remote(runner) if row.ranks == REMOTE and not plain else None
        return Engine(
            config,
            runner,
            observer=self._observe,
            scheduler=scheduler,
            remote=remote,
            drafting=drafting,
            grammars=self.grammars,
        )

    def _remote(self, runner: Runner) -> Callable[[KvTransaction, Book], RemotePrefixes]:
        """A pool that has room for all blocks, behind a link on which nothing befalls."""
        assert isinstance(runner, TransformerRunner)  # no row splits one over ranks and has a pool
        clock, size = HandClock(), runner.block_bytes
        shelf = StoreShelf(StorePool(_BLOCKS * size), b"the covered pool", store_end(size))
        link, ends = PromptLink(shelf, clock), engine_end(size)
        return lambda kv, book: RemotePrefixes(
            kv, book, runner, lambda pages: Connector(ends, pages, link, clock, b"a covered engine"), b"floats", self._observe
        )

    def _drafting(self) -> Drafting | None:
        kind = self.row.speculation
        if kind == "no drafts":
            return None
        if kind == "prompt lookup":
            return Drafting(PromptLookup())
        if kind == "scripted drafts":
            truth = continuing((*each.request.prompt, *each.tokens) for each in self.serve(plain=True))
            return Drafting(Scripted(truth, (2, 0, 3, 1), VOCAB_SIZE))
        draft = TransformerRunner(tiny_random(_DRAFT_SHAPE, self.seed), _BLOCKS, _BLOCK)
        return Drafting(DraftModel(draft, _BLOCKS, _BLOCK, max_drafts=3))

    def _observe(self, event: Event) -> None:
        """Counts what the rows are about."""
        count_event(self.reached, event)
        if event.kind is EventKind.EMITTED:
            self.reached["steps with drafts that stood"] += event.tokens > 1
        elif event.kind is EventKind.LOADED:
            self.reached["blocks from the pool"] += len(event.blocks)

    def judge(self, said: Said, chance: np.random.Generator, numbers: list[float]) -> Violation | None:
        """The first token that is not the law's; of those that no seed decides, where they stand in their law is noted."""
        request = said.request
        subject = f"request {request.request_id}, choice {said.choice}; {', '.join(self.row)}"
        ended = endings(Emitted(request, said.choice, said.tokens, torch.empty(0, 0), said.end, said.message))
        if ended is not None:
            return Violation("SC-12", "stopping", subject, ended.what, "its due end")
        if not said.tokens:
            return None
        weights = weights_of(self.seed, request.adapter)
        rows = reference_logits(weights, (*request.prompt, *said.tokens[:-1]), begin=len(request.prompt) - 1).numpy()
        for index, token in enumerate(said.tokens):
            found = self._token(said, index, token, rows[index], chance, numbers)
            if found is not None:
                return Violation(*found[0], subject, found[1], found[2])
        return None

    def _token(
        self,
        said: Said,
        index: int,
        token: int,
        row: npt.NDArray[np.float64],
        chance: np.random.Generator,
        numbers: list[float],
    ) -> tuple[tuple[str, str], str, str] | None:
        sampling = said.request.sampling
        history = History(said.request.prompt, said.tokens[:index])
        slack = tolerance_of(torch.float32) * float(row.std())
        if self.is_decided(said):
            address = Address(sampling.seed, said.choice, len(said.request.prompt) + index, index)
            law = next_token(row, sampling, address, slack, history=history)
            self.reached["tokens that a seed decides"] += 1
            if token in law.allowed:
                return None
            sentence = ("SE-1", "greedy equality") if sampling.temperature == 0 else ("SE-2", "seeded equality")
            return sentence, f"token {token} at {index}", f"token {law.token}"
        left = masked(adjusted(row, steps_of(sampling, history)), sampling, index)
        may = kept(left, sampling, slack)
        if token not in may.tokens:
            return ("ST-1", "speculation is lossless"), f"token {token} at {index}", "a token that has a probability"
        sure = kept(left, sampling)
        shares = np.exp(sure.values - sure.values.max())
        shares /= shares.sum()
        place = np.flatnonzero(sure.tokens == token)
        if len(place):
            at = int(place[0])
            numbers.append(float(shares[:at].sum() + chance.random() * shares[at]))
        return None


def _judged(case: Case, chance: np.random.Generator, numbers: list[float]) -> Iterator[Violation]:
    """What is wrong with each of the choices of a row, served now."""
    try:
        said = case.serve()
    except RankLost as lost:
        yield violation("DI-1", ", ".join(case.row), str(lost), "ranks that agree to the end")
        return
    case.reached["rows on ranks"] += bool(ranks_of(case.row.ranks))
    for each in said:
        if (found := case.judge(each, chance, numbers)) is not None:
            yield found


def check_covered(context: SuiteContext) -> CheckResult:
    """The suite, up to the first row that is wrong."""
    most_ranks = _MOST_RANKS[context.profile]
    rows = array(most_ranks)
    if context.profile is Profile.QUICK:
        rows = rows[:_QUICK_ROWS]
    passes = PASSES[context.profile]
    chance = np.random.default_rng([context.seed, 11])
    numbers: list[float] = []
    reached: Counter[str] = Counter()
    again = {"suite": SUITE_ID, "profile": context.profile.value, "seed": context.seed}
    broken: list[Violation] = []
    grammars, processes = CompiledGrammars(TEXTS), Processes()
    try:
        with one_thread():
            for number, (turn, row) in enumerate((turn, row) for turn in range(passes) for row in rows):
                context.progress(number, passes * len(rows))
                case = Case(row, (context.seed + turn) % 2**31, grammars, processes)
                broken += islice(_judged(case, chance, numbers), 1)
                reached.update(case.reached)
                if broken:
                    break
    finally:
        processes.close()
        grammars.close()
    answers = []
    if not broken and len(numbers) >= 100:
        alpha = Ledger().take("covered-drawn")
        null = "tokens behind drafts that were drawn stand in the reference's law as often as it says"
        answers.append(uniform_statistic("covered-drawn", null, numbers, alpha))
        if answers[0].verdict is Verdict.INVALID:
            told = f"{answers[0].statistic}, p = {answers[0].p:.1e}"
            broken.append(Violation("ST-1", "speculation is lossless", null, told, f"p of at least {alpha:.0e}"))
    names = (
        "preempted", "tokens from the cache", "forked", "steps with drafts that stood", "tokens that a seed decides",
        "rows on ranks", "blocks from the pool",
    )  # fmt: skip
    missed = [f"{name}: 0" for name in names if not reached[name]]
    return CheckResult(
        SUITE_ID,
        verdict_of(broken, missed),
        examples=passes * len(rows),
        ops=reached["tokens that a seed decides"] + len(numbers),
        reached={name: reached[name] for name in names},
        missed=() if broken else tuple(missed),
        invariants={
            "SE-1": reached["tokens that a seed decides"],
            "ST-1": len(answers),
            "SC-12": passes * len(rows),
            "DI-1": reached["rows on ranks"],
        },
        failures=tuple(Failure(each, seed=f"{context.seed:#x}", world=again) for each in broken),
        statistics=tuple(answers),
        note=f"{len(rows)} rows, {len(uncovered(rows, most_ranks))} pairs of values left out, "
        f"{reached['tokens that a seed decides']:,} tokens one by one, {len(numbers):,} by their distribution, "
        f"{reached['rows on ranks']} rows on up to {most_ranks} ranks",
    )
