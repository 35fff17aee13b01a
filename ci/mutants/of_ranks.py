"""Bugs of groups of ranks: corpus class 9. Data only."""

from __future__ import annotations

from ci.mutants.mutant import Mutant

_RANKS = "engine_under_test/distributed/ranks.py"
_MODELS = "engine_under_test/distributed/rank_models.py"
_SUPERVISOR = "engine_under_test/distributed/rank_supervisor.py"
_VITALS = "engine_under_test/distributed/rank_vitals.py"
_HUNT = ("ranks",)
_PLAYED = ("ranks-in-turn",)
_PAIRS = ("covering-array",)

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "pool-of-each-rank",
        "lll-kv-size-multinode",
        "https://github.com/ModelTC/lightllm/pull/931",
        _MODELS,
        "        return SplitFingerprints(config.num_blocks, config",
        "        return SplitFingerprints(config.num_blocks + collectives.rank, config",
        "Each rank makes as many blocks as it has room for, and nobody agrees on the least.",
        _HUNT,
    ),
    Mutant(
        "followers-lack-the-tokens",
        "nano-tp-partial-state-after-preempt",
        "https://github.com/GeeeekExplorer/nano-vllm/commit/82f5ca2",
        _RANKS,
        "        for process in self._processes:\n            process.link.post(step)\n",
        "        import dataclasses\n"
        "        partial = dataclasses.replace(plan, token_ids=(0,) * (len(plan.token_ids) - 1) + plan.token_ids[-1:])\n"
        "        for process in self._processes:\n"
        "            process.link.post(step if process is self._processes[0] else dataclasses.replace(step, plan=partial))\n",
        "All ranks but the first are sent the last token of a plan instead of all of them.",
        _HUNT,
    ),
    Mutant(
        "kv-heads-dealt-round",
        "ours",
        "",
        "engine_under_test/model/sharding.py",
        "    first_kv = rank * whole.num_kv_heads // world_size\n",
        "    first_kv = rank % whole.num_kv_heads\n",
        "Where ranks share KV heads, each takes the next one in turn and not the one of its own queries.",
        _HUNT,
    ),
    Mutant(
        "prompt-logits-of-the-own-shard",
        "vllm-ascend 12539",
        "https://github.com/vllm-project/vllm-ascend/pull/12539",
        _MODELS,
        '        return self._sum(np.ascontiguousarray(super()._running_digests(read, positions)), "digests of a prompt")\n',
        "        return super()._running_digests(read, positions)\n",
        "The logits behind a prompt's tokens are made of a rank's own shard, where those of the next token are summed first.",
        _HUNT,
    ),
    Mutant(
        "collective-skipped-by-one",
        "vllm-dp-zero-token-skip",
        "https://github.com/vllm-project/vllm/pull/28774",
        _MODELS,
        "        self._collectives.all_reduce(torch.from_numpy(words.view(np.int64)), what)\n",
        "        if self._collectives.rank == 0 or len(words) > 1:\n"
        "            self._collectives.all_reduce(torch.from_numpy(words.view(np.int64)), what)\n",
        "A rank that has little to add returns early, while the others wait for it.",
        _HUNT,
    ),
    Mutant(
        "frozen-ranks-left-behind",
        "vllm-engine-orphan-sigkill",
        "https://github.com/vllm-project/vllm/issues/55510",
        _RANKS,
        "        for process in self._processes:\n            process.kill()\n",
        "",
        "The ranks of a broken group are expected to end by themselves, which a frozen one does not.",
        _HUNT,
    ),
    Mutant(
        "engine-outlives-its-store",
        "ours",
        "",
        _SUPERVISOR,
        "        self._restart_group()\n        engine.restart()\n",
        "        self._restart_group()\n        engine.abandon(min(engine.plans_in_flight, default=0), str(lost))\n",
        "The ranks begin anew with empty stores, and the engine goes on with tables of what they held.",
        _HUNT,
    ),
    Mutant(
        "rows-of-a-rank-in-its-own-order",
        "minisgl-set-order-across-ranks",
        "https://github.com/sgl-project/mini-sglang/pull/113",
        _MODELS,
        '        return self._sum(super()._digests(read, places), "digests")\n',
        "        found = super()._digests(read, places)\n"
        "        order = slice(None, None, -1 if self._collectives.rank else 1)\n"
        '        return self._sum(found[order].copy(), "digests")[order]\n',
        "A rank puts the rows of a batch in an order of its own, and sums of different requests are added up.",
        _HUNT,
    ),
    Mutant(
        "a-beat-of-any-rank-counts-for-all",
        "ours",
        "",
        _RANKS,
        "            self._vitals.heard(rank, now)\n",
        "            for each in range(self.config.world_size):\n                self._vitals.heard(each, now)\n",
        "Whoever beats is taken for all of them, so a frozen rank is missed only when a step is late.",
        _PLAYED,
    ),
    Mutant(
        "lost-rank-ends-nobody",
        "ours",
        "",
        _SUPERVISOR,
        "engine.abandon(plan_id, str(lost), range(lost.rows.get(plan_id, 0)))",
        "engine.abandon(plan_id, str(lost))",
        "Nobody is blamed for a lost rank, so requests in flight are tried again whatever the policy says.",
        _PLAYED,
    ),
    Mutant(
        "losses-never-add-up",
        "ours",
        "",
        _SUPERVISOR,
        "self._losses + 1 if engine.counters.committed == self._committed else 1",
        "1",
        "A plan that takes a rank with it each time is tried for ever.",
        _PLAYED,
    ),
    Mutant(
        "echo-is-blamed",
        "ours",
        "",
        _RANKS,
        "self._clock.now() + (_CAUSE_S if message.is_echo else 0.0)",
        "self._clock.now()",
        "Who says first that a collective failed is named, and the rank that died is not looked for.",
        _PLAYED,
    ),
    Mutant(
        "answers-never-compared",
        "ours",
        "",
        _RANKS,
        "            if found := launch.disagreement():\n                self._break(*found)\n                return\n",
        "",
        "The answer of the first rank is taken, whatever the others say.",
        _PLAYED,
    ),
    Mutant(
        "a-step-is-never-late",
        "ours",
        "",
        _RANKS,
        "        elif waited >= patience.step_s:\n",
        "        elif waited >= 1e9:\n",
        "A rank that beats and computes no more is waited for.",
        _PLAYED,
    ),
    Mutant(
        "starts-without-end",
        "ours",
        "",
        _SUPERVISOR,
        "        for attempt in range(self._max_starts):\n",
        "        for attempt in iter(int, 1):\n",
        "A group that never comes up is started for ever, and the step does not return.",
        _PLAYED,
    ),
    Mutant(
        "absence-counts-as-silence",
        "ours",
        "",
        _VITALS,
        "        if away > 0:\n",
        "        if away > 1e9:\n",
        "Time in which the driver did not listen counts as silence of its ranks.",
        _PLAYED,
    ),
    Mutant(
        "adapter-added-behind-the-sum",
        "ours",
        "",
        "engine_under_test/execution/adapter_slots.py",
        "        if isinstance(product, PartialProduct):\n            return product.summed(self.whole(product.own))\n",
        "",
        "Each rank adds its own part of an adapter to what was summed up already, and no two have the same.",
        _PAIRS,
    ),
    Mutant(
        "adapter-split-along-the-other-side",
        "ours",
        "",
        "engine_under_test/model/sharding.py",
        "LoraModule(each.a, _piece(each.b, part)) if part.dim == 0 else LoraModule(_piece(each.a, part), each.b)",
        "LoraModule(each.a, _piece(each.b, part)) if part.dim == 0 else LoraModule(_piece(each.a, part._replace(begin=0)), each.b)",
        "Of an adapter of a matrix that is split by columns every rank takes the first columns.",
        _PAIRS,
    ),
    Mutant(
        "rank-draws-anew-each-step",
        "vllm-seed-pp",
        "https://github.com/vllm-project/vllm/pull/6698",
        _MODELS,
        "        product=SummedProduct(weights, collectives),\n",
        "        product=SummedProduct(weights, collectives),\n"
        '        noise=type("Anew", (__import__("engine_under_test.sampling.noise", fromlist=["x"]).PhiloxNoise,), {\n'
        '            "uniform": lambda self, seeds, choices, positions, *rest:'
        " super(type(self), self).uniform(seeds, choices, positions * 0, *rest),\n"
        '            "uniform_at": lambda self, seed, choice, position, *rest:'
        " super(type(self), self).uniform_at(seed, choice, 0, *rest),\n"
        "        })(),\n",
        "Ranks make the generator of a seeded request anew in each step, so that it begins again and again.",
        _PAIRS,
    ),
)
