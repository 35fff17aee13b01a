"""The suite `smollm2`: a real language model, as published, token by token, against both oracles.

Owns which prompts, settings and counts. What the oracles take from the engine (weights, shape, tokens) is compared first with
the published file as others read it (`published.py`). Where the model was not fetched, or a part of the installation is
missing, the suite is unknown and says what to do. Real prompts are the input; the seed is that of the sampled ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from differential.judging import Judge
from differential.prompts import PROMPTS, Prompt
from differential.published import CHATS, FIELDS, TENSORS, TEXTS, TOKENS, Published, Read, compare, read_published
from differential.running import MakeRunner, transformer_runner
from differential.setting import SMOLLM2, ModelSpec, Setting, World, plain_world, weights_of
from differential.threads import one_thread
from differential.trials import Tally, Trial
from engine_under_test.config import EngineConfig
from engine_under_test.errors import BadInput
from engine_under_test.model.fetch import gguf_of, model_folder
from engine_under_test.model.tokenizer import Tokenizer, load_tokenizer
from engine_under_test.model.weights import LlamaWeights
from engine_under_test.types import Request, SamplingParams
from properties.suite import CheckResult, Failure, Profile, SuiteContext
from properties.verdict import Verdict

SUITE_ID = "smollm2"
MODEL = ModelSpec(SMOLLM2)
LONG = 500  # tokens: one prompt has more
# With a temperature; the others are greedy.
_SAMPLED = {
    "symbols": SamplingParams(temperature=0.7),
    "chat about numbers": SamplingParams(temperature=0.9, top_k=50, top_p=0.95, min_p=0.02),
}
_LARGE = 1 << 60  # added to the seeds: more than 32 bits, and no double
_POOL: dict[str, Any] = {"num_blocks": 128, "block_size": 16, "max_tokens_per_step": 1024, "max_num_seqs": 16}


def trials(profile: Profile, vocab_size: int) -> tuple[Trial, ...]:
    """Plain, cached, chunked, together, one preempted; at night also eager attention, forks, overlap and the invariant mode."""

    def trial(setting: Setting, floors: dict[str, int], **config: Any) -> Trial:
        return Trial(World(MODEL, EngineConfig(**{**_POOL, "vocab_size": vocab_size, **config}), setting), floors)

    plain = Trial(plain_world(trial(Setting("plain"), {}).world), {"steps": 40})
    daily = (
        plain,
        trial(Setting("cached", is_warm=True), {"tokens from the cache": 400}),
        trial(Setting("in chunks of 77", gap=2), {"chunks": 5, "prefills beside decodes": 3}, max_tokens_per_step=77),
        trial(Setting("batch of 8, one preempted", preempts_at=(3,), preempts="long"), {"most rows": 8, "preempted": 1}),
    )
    if profile is not Profile.NIGHTLY:
        return daily
    return (
        *daily,
        trial(Setting("eager attention", attention="eager"), {"most rows": 8}),
        trial(Setting("forked in 2", choices=2), {"forked": 8, "blocks copied": 1}, max_num_seqs=24),
        trial(Setting("depth 2", gap=1, preempts_at=(2,)), {"tokens in flight": 20}, max_plans_in_flight=3),
        trial(Setting("invariant, batch of 8", is_batch_invariant=True), {"most rows": 8}),
        trial(Setting("invariant, in chunks of 77", is_batch_invariant=True), {"chunks": 5}, max_tokens_per_step=77),
    )


def requests(tokenizer: Tokenizer, seed: int, prompts: Sequence[Prompt] = PROMPTS) -> tuple[Request, ...]:
    """The prompts in tokens; a chat ends at the model's own stop tokens."""
    found = []
    for prompt in prompts:
        sampling = _SAMPLED.get(prompt.name, SamplingParams())
        sampling = replace(sampling, max_tokens=prompt.max_tokens, seed=(_LARGE + 2 * seed + 1) % 2**64)
        if prompt.is_chat:
            tokens = tokenizer.chat([{"role": "user", "content": prompt.text}])
            sampling = replace(sampling, stop_token_ids=tokenizer.stop_token_ids)
        else:
            tokens = tokenizer.encode(prompt.text)
        found.append(Request(prompt.name, tuple(tokens), sampling))
    return tuple(found)


def check_smollm2(
    context: SuiteContext, make_runner: MakeRunner = transformer_runner, read: Read = read_published
) -> CheckResult:
    """The suite: the model against the published one, then every prompt in every trial, up to the first divergence."""
    folder = model_folder(SMOLLM2)
    if folder is None:
        return _unknown("SmolLM2-135M-Instruct is not on this machine; say assay model fetch, then run the gate again")
    tally = Tally(SUITE_ID, context.seed, context.shrink_s)
    try:
        tokenizer = load_tokenizer(folder)
        asked = requests(tokenizer, context.seed)
        told = trials(context.profile, tokenizer.vocab_size)
        context.progress(0, len(told) + 1)
        with one_thread():
            judge_published(tally, context, weights_of(MODEL), tokenizer, read(gguf_of(folder)))
            if not tally.failures:
                judge = Judge(MODEL, make_runner, asks_plans=False)
                tally.go_through(judge, told, asked, lambda: context.progress(tally.examples, len(told) + 1))
    except BadInput as error:
        return _unknown(str(error))
    longest = max(len(request.prompt) for request in asked)
    if longest <= LONG:
        tally.missed[f"a prompt of more than {LONG} tokens, found {longest}"] = None
    words = f"{len(asked)} prompts, the longest of {longest} tokens, under {len(told)} settings"
    return tally.result(f"the model is the published one; {words}" if not tally.failures else words)


def judge_published(
    tally: Tally, context: SuiteContext, weights: LlamaWeights, tokenizer: Tokenizer, published: Published
) -> None:
    """One example: what the engine loaded, against what others read from the same file."""
    done = compare(weights, tokenizer, published)
    tally.examples += 1
    tally.ops += done.compared.total()
    tally.reached.update(done.compared)
    tally.evaluations["SE-1"] += done.compared[TENSORS] + done.compared[FIELDS]
    tally.evaluations["SC-12"] += done.compared[TOKENS] + done.compared[TEXTS] + done.compared[CHATS]
    tally.missed.update(dict.fromkeys(done.missed))
    if done.violation is not None:
        again = {"suite": SUITE_ID, "profile": context.profile.value, "seed": context.seed}
        tally.failures = (Failure(done.violation, f"{SUITE_ID}#{context.seed:#x}", again),)


def _unknown(why: str) -> CheckResult:
    return CheckResult(SUITE_ID, Verdict.UNKNOWN, note=why)
