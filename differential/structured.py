"""The suite `structured-output`: whatever an engine does meanwhile, an output with a grammar is at every token the begin of one
of its texts, a complete one is one of them, and each token is the one that an independent law gives.

Owns what is judged, how much of it, and the floors. The law knows no library: what a grammar means was put together by hand
beside it (`properties.grammar_cases`, `properties.languages`), and the draw is that of `models.law_of_filters`; of a complete
text `re` and `jsonschema` are asked too. Three times: requests served by an engine in every way of `structured_world.WAYS`;
rows straight through both samplers and the law that drafts are verified by; and masks by themselves (`grammar_masks`). A
request whose other steps leave nothing that its grammar allows ends with an error, exactly there.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch

from differential.grammar_masks import Masks
from differential.made_grammars import misfit
from differential.said import Said
from differential.structured_world import WAYS, Floats, Way, laws_of, logits_behind, requests, serve
from differential.threads import one_thread
from engine_under_test.sampling import sampler, torch_sampler
from engine_under_test.sampling.grammar import CompiledGrammars
from engine_under_test.sampling.noise import PhiloxNoise
from engine_under_test.sampling.processed import RowState, processed
from engine_under_test.types import FinishReason, History, Request, SamplingParams
from models.law_of_adjustments import adjusted, steps_of
from models.law_of_filters import Address, Drawn, kept, masked, next_token
from properties.fewest import fewest
from properties.grammar_cases import CASES, LANGUAGES, STOPS, TEXTS, VOCAB_SIZE
from properties.languages import allowed, wrong_output
from properties.suite import CheckResult, Failure, Profile, SuiteContext
from properties.verdict import Violation, verdict_of

SUITE_ID = "structured-output"
ROUNDS = {Profile.QUICK: 1, Profile.PR: 3, Profile.NIGHTLY: 40}
_BATCHES = {Profile.QUICK: 4, Profile.PR: 40, Profile.NIGHTLY: 600}  # of rows straight through the samplers
_ROWS = 12
_MADE = {Profile.QUICK: 15, Profile.PR: 140, Profile.NIGHTLY: 3_000}  # grammars at random, masks compared
_WIDE = {Profile.QUICK: 1, Profile.PR: 1, Profile.NIGHTLY: 40}  # times that characters, keywords and sizes are asked about
_STATES = 7  # of outputs: so that the state of most is found, and of many is not
FLOORS: Mapping[str, int] = {  # of each round
    "complete outputs": 80,
    "cut by max_tokens": 8,
    "ended where nothing is left": 8,
    "tokens that were the only ones allowed": 150,
    "tokens that the grammar decided about": 400,
    "ends that the grammar put off": 30,
    "texts of made grammars": 5,
}
FLOORS_WIDE: Mapping[str, int] = {  # of each time
    "grammars with relatives": 2,
    "masks that tell cases apart": 12,
    "masks that allow other scripts": 30,
    "masks that forbid other scripts": 30,
    "near misses held back": 100,
    "values let through": 60,
    "sizes about the limit": 3,
}


def check_structured(context: SuiteContext) -> CheckResult:
    """The suite, up to the first violation, whose requests are shrunk."""
    grammars = CompiledGrammars(TEXTS, most_states=_STATES)
    judge = _Judge(grammars)
    try:
        with one_thread():
            failure = judge.run(context)
    finally:
        grammars.close()
        judge.masks.close()
    floors = {name: least * ROUNDS[context.profile] for name, least in FLOORS.items()}
    floors |= {name: least * _WIDE[context.profile] for name, least in FLOORS_WIDE.items()}
    short = [f"{name} {judge.reached[name]} of {least}" for name, least in floors.items() if judge.reached[name] < least]
    missed = () if failure else (*short, *judge.missed)
    return CheckResult(
        SUITE_ID,
        verdict_of(failure, missed),
        examples=judge.reached["rounds"],
        ops=judge.reached["tokens"],
        reached={name: judge.reached[name] for name in (*floors, *judge.of_ways)},
        missed=missed,
        invariants=dict(judge.asked),
        failures=(failure,) if failure else (),
        note=f"{judge.reached['tokens']:,} tokens, {judge.reached['complete outputs']} complete outputs in {len(WAYS)} ways",
    )


class _Judge:
    """Serves, asks the samplers, and judges."""

    def __init__(self, grammars: CompiledGrammars) -> None:
        self._grammars = grammars
        self._noise = PhiloxNoise()
        self.reached: Counter[str] = Counter()
        self.of_ways: Counter[str] = Counter()
        self.asked: Counter[str] = Counter()
        self.missed: list[str] = []
        self.masks = Masks(grammars, self.reached, self.asked)

    def run(self, context: SuiteContext) -> Failure | None:
        """Masks of the wide vocabulary, rounds, batches of rows, masks of grammars at random."""
        rounds, batches = ROUNDS[context.profile], _BATCHES[context.profile]
        again = {"suite": SUITE_ID, "profile": context.profile.value, "seed": context.seed}
        name = f"{SUITE_ID}#{context.seed:#x}"
        for number in range(_WIDE[context.profile]):
            found = self.masks.wide(random.Random(f"wide {context.seed} {number}"))
            if found is not None:
                return Failure(found, name, again)
        for number in range(rounds):
            seed = (context.seed + number) % 2**63
            found = self._round(seed, context.shrink_s)
            if found is not None:
                return Failure(found, name, again)
            self.reached["rounds"] += 1
            context.progress(number + 1, rounds + 1)
        for number in range(batches):
            found = self._rows(random.Random(f"rows {context.seed} {number}"))
            if found is not None:
                return Failure(found, name, again)
        for number in range(_MADE[context.profile]):
            found = self.masks.made(random.Random(f"made {context.seed} {number}"))
            if found is not None:
                return Failure(found, name, again)
        return None

    def _round(self, seed: int, shrink_s: float) -> Violation | None:
        """The same requests in every way; the first tells the others what to propose."""
        laws, asked = laws_of(seed), requests(seed)
        truth: dict[tuple[int, ...], tuple[int, ...]] = {}
        for way in WAYS:
            said, reached = serve(way, asked, laws, self._grammars, truth)
            for each in said:
                found = self.judge(each, laws)
                if found is not None:
                    return self._shrunk(found, way, asked, laws, truth, shrink_s)
            truth = truth or {each.request.prompt: each.tokens for each in said if each.choice == 0}
            self._count(way, said, laws, reached)
        return None

    def judge(self, said: Said, laws: Floats) -> Violation | None:
        """RS-2 of the output, then each token by the law."""
        spec, tokens = said.request.sampling.grammar, said.tokens
        subject = f"request {said.request.request_id}, choice {said.choice}"
        is_stopped = said.end is FinishReason.STOP
        if spec is not None:
            self.asked["RS-2"] += 1
            wrong = wrong_output(LANGUAGES[spec], TEXTS, tokens, STOPS, is_complete_now=is_stopped)
            if wrong is None and is_stopped:
                wrong = misfit(spec, b"".join([TEXTS[token] for token in tokens[:-1]]))
            if wrong is not None:
                return _violation("RS-2", "grammar", subject, wrong, "the begin of a text of its grammar", said)
        for index, token in enumerate(tokens):
            left = _left(said, index, laws)
            if left.max() == -np.inf:
                expected = "an error where nothing is left that the grammar allows"
                return _violation("RS-2", "grammar", subject, f"token {token} at {index}", expected, said)
            law = _law(said, index, laws)
            is_greedy = said.request.sampling.temperature == 0
            self.asked["SE-1" if is_greedy else "SE-2"] += 1
            if token not in law.allowed:
                name = "greedy equality" if is_greedy else "seeded equality"
                found, due = f"token {token} ({TEXTS[token]!r}) at {index}", f"token {law.token} ({TEXTS[law.token]!r})"
                return _violation("SE-1" if is_greedy else "SE-2", name, subject, found, due, said)
        return self._wrong_end(said, laws, subject)

    def _wrong_end(self, said: Said, laws: Floats, subject: str) -> Violation | None:
        """SC-12: who ends how."""
        self.asked["SC-12"] += 1
        tokens = said.tokens
        if said.was_given_up and said.end is FinishReason.ABORT:
            return None
        is_over = bool(tokens) and tokens[-1] in said.request.sampling.stop_token_ids
        due: FinishReason | None
        if is_over or len(tokens) >= said.request.sampling.max_tokens:
            due = FinishReason.STOP if is_over else FinishReason.LENGTH
        else:
            due = FinishReason.ERROR if _left(said, len(tokens), laws).max() == -np.inf else None
        if said.end is due and due is not None:
            return None
        found = f"{said.end} after {len(tokens)} tokens {said.message}".rstrip()
        return _violation("SC-12", "stopping", subject, found, f"{due or 'further tokens'}", said)

    def _shrunk(
        self,
        found: Violation,
        way: Way,
        asked: Sequence[Request],
        laws: Floats,
        truth: Mapping[tuple[int, ...], tuple[int, ...]],
        seconds: float,
    ) -> Violation:
        """The same sentence broken with as few requests as were found in the time."""
        ends_at = time.monotonic() + seconds
        shortest = found

        def fails(fewer: Sequence[Request]) -> bool:
            nonlocal shortest
            said, _ = serve(way, fewer, laws, self._grammars, truth)
            others = [self.judge(each, laws) for each in said]
            same = next((each for each in others if each is not None and each.invariant == found.invariant), None)
            shortest = same or shortest
            return same is not None

        left = fewest(asked, fails, lambda: time.monotonic() < ends_at)
        facts = (f"{'way':<13} {way.name}: {way}", f"{'requests':<13} {len(left)} of {len(asked)}: {left}")
        return replace(shortest, facts=(*shortest.facts, *facts))

    def _count(self, way: Way, said: Sequence[Said], laws: Floats, reached: Mapping[str, int]) -> None:
        for name, least in way.floors.items():
            self.of_ways[f"{way.name}: {name}"] += reached.get(name, 0)
            self.reached[f"{way.name}: {name}"] += reached.get(name, 0)
            if reached.get(name, 0) < least:
                self.missed.append(f"{way.name}: {name} {reached.get(name, 0)} of {least}")
        for each in said:
            self.reached["tokens"] += len(each.tokens)
            spec = each.request.sampling.grammar
            if spec is None:
                continue
            self.reached["complete outputs"] += each.end is FinishReason.STOP
            self.reached["cut by max_tokens"] += each.end is FinishReason.LENGTH
            self.reached["ended where nothing is left"] += each.end is FinishReason.ERROR
            self._count_tokens(each, laws)

    def _count_tokens(self, said: Said, laws: Floats) -> None:
        """Which tokens the grammar decided about: those that would have been others without it."""
        free = replace(said, request=replace(said.request, sampling=replace(said.request.sampling, grammar=None)))
        spec = said.request.sampling.grammar
        assert spec is not None
        for index in range(len(said.tokens)):
            may_follow = allowed(LANGUAGES[spec], TEXTS, said.tokens[:index], STOPS)
            self.reached["tokens that were the only ones allowed"] += len(may_follow) == 1
            token = _law(free, index, laws).token
            self.reached["tokens that the grammar decided about"] += token not in may_follow
            self.reached["ends that the grammar put off"] += token in STOPS and token not in may_follow

    # Straight through the samplers

    def _rows(self, chance: random.Random) -> Violation | None:
        """One batch, some rows without a grammar, by numpy's sampler and torch's, and its law for verification."""
        said = [_row(chance) for _ in range(_ROWS)]
        rng = np.random.default_rng(chance.getrandbits(64))
        laws = rng.normal(0.0, 3.0, (len(said), VOCAB_SIZE)).astype(np.float32).astype(np.float64)
        draws = sampler.Draws(
            [each.request.sampling for each in said],
            [each.choice for each in said],
            [len(each.request.prompt) + len(each.tokens) for each in said],
            [len(each.request.prompt) for each in said],
            [History(each.request.prompt, each.tokens) if each.request.sampling.needs_history else None for each in said],
        )
        logits = torch.from_numpy(laws).float()
        asks: dict[str, Callable[[], sampler.Sampled]] = {
            "numpy's sampler": lambda: sampler.sample_and_tell(laws.copy(), draws, self._noise, grammars=self._grammars),
            "torch's sampler": lambda: torch_sampler.sample_and_tell(logits, draws, self._noise, grammars=self._grammars),
        }
        for name, ask in asks.items():
            tokens = ask().tokens
            for each, row, token in zip(said, laws, tokens, strict=True):
                found = self._wrong_draw(each, row, token, name)
                if found is not None:
                    return found
        return self._wrong_law(said, laws, logits)

    def _wrong_draw(self, said: Said, row: Floats, token: int, name: str) -> Violation | None:
        sampling, history = said.request.sampling, History(said.request.prompt, said.tokens)
        position = len(history.prompt) + len(history.output)
        law = next_token(row, sampling, Address(sampling.seed, said.choice, position, len(history.output)), history=history)
        self.asked["SE-1" if sampling.temperature == 0 else "SE-2"] += 1
        if token in law.allowed:
            return None
        invariant = "RS-2" if token not in kept(_row_left(row, sampling, history), sampling).tokens else "SE-2"
        title = "grammar" if invariant == "RS-2" else "seeded equality"
        return _violation(invariant, title, f"a row of {name}", f"token {token}", f"token {law.token}", said)

    def _wrong_law(self, said: Sequence[Said], laws: Floats, logits: torch.Tensor) -> Violation | None:
        states = [RowState(each.request.sampling, History(each.request.prompt, each.tokens)) for each in said]
        law = processed(logits, states, grammars=self._grammars).numpy()
        for each, state, row, found in zip(said, states, laws, law, strict=True):
            self.asked["ST-2"] += 1
            left = kept(_row_left(row, state.params, state.history), state.params)
            due = set(left.tokens[left.is_sure].tolist())
            some = set(np.flatnonzero(found).tolist())
            if not (due <= some <= set(left.tokens.tolist()) and abs(found.sum() - 1) < 1e-9):
                what = "a row of the law that drafts are verified by"
                return _violation("ST-2", "sampler", what, f"tokens {sorted(some)}", f"tokens {sorted(due)}", each)
        return None


def _row(chance: random.Random) -> Said:
    """A row somewhere in an output, with or without a grammar."""
    case = chance.choice(list(CASES.values()))
    output: tuple[int, ...] = ()
    for _ in range(chance.randrange(8)):
        following = sorted(allowed(case.language, TEXTS, output, STOPS) - set(STOPS))
        if not following:
            break
        output += (chance.choice(following),)
    sampling = SamplingParams(
        stop_token_ids=STOPS,
        temperature=chance.choice((0.0, 0.7, 1.0)),
        top_p=chance.choice((1.0, 0.5, 0.9)),
        top_k=chance.choice((0, 0, 1, 3)),
        min_p=chance.choice((0.0, 0.2)),
        frequency_penalty=chance.choice((0.0, 1.0)),
        seed=chance.getrandbits(64),
        grammar=case.spec if chance.random() < 0.7 else None,
    )
    return Said(Request("row", (1, 2), sampling), chance.randrange(3), output)


def _row_left(row: Floats, sampling: SamplingParams, history: History) -> Floats:
    return masked(adjusted(row, steps_of(sampling, history)), sampling, len(history.output))


def _left(said: Said, index: int, laws: Floats) -> Floats:
    """What of the logits the steps before the temperature leave of token ``index`` of the output."""
    prompt, output = said.request.prompt, said.tokens[:index]
    return _row_left(logits_behind(laws, prompt + output), said.request.sampling, History(prompt, output))


def _law(said: Said, index: int, laws: Floats) -> Drawn:
    prompt, output, sampling = said.request.prompt, said.tokens[:index], said.request.sampling
    address = Address(sampling.seed, said.choice, len(prompt) + index, index)
    return next_token(logits_behind(laws, prompt + output), sampling, address, history=History(prompt, output))


def _violation(invariant: str, name: str, subject: str, found: str, expected: str, said: Said) -> Violation:
    spoken = [TEXTS[token] for token in said.tokens]
    facts = (
        f"{'output':<13} {list(said.tokens)}, {b''.join(spoken)!r}",
        f"{'grammar':<13} {said.request.sampling.grammar}",
        f"{'parameters':<13} {said.request.sampling}",
    )
    return Violation(invariant, name, subject, found, expected, facts)
