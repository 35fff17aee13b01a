"""Bugs that one strange or broken request brings upon everybody: at the door, in its own processors, in the cache. Data only."""

from __future__ import annotations

from ci.mutants.mutant import Mutant

_DOOR = "engine_under_test/scheduling/door.py"
_ADJUSTMENTS = "engine_under_test/sampling/adjustments.py"
_HUNT = ("strange-requests",)

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "tenant-of-any-type",
        "vllm 5963",
        "https://github.com/vllm-project/vllm/pull/5963",
        _DOOR,
        '_is_text(request.tenant), "a text"',
        'True, "a text"',
        "A field is believed to be what its annotation says: the first who reads it raises, for everybody.",
        _HUNT,
    ),
    Mutant(
        "half-a-character-let-in",
        "vllm 5963",
        "https://github.com/vllm-project/vllm/pull/5963",
        _DOOR,
        "    try:\n        value.encode()\n    except UnicodeEncodeError:\n        return False\n",
        "",
        "Half of a surrogate pair, which JSON can bring, is let in as text and can not be hashed.",
        _HUNT,
    ),
    Mutant(
        "integers-beyond-arrays",
        "vllm 16529",
        "https://github.com/vllm-project/vllm/pull/16529",
        _DOOR,
        "(type(value) is int and abs(value) < 2**63)",
        "type(value) is int",
        "A number is let in that no array takes: the step fails for the whole batch.",
        _HUNT,
    ),
    Mutant(
        "more-choices-than-seats",
        "vllm-oversize-request-deadlock",
        "https://github.com/vllm-project/vllm/issues/39734",
        _DOOR,
        "_is_int(sampling.n, 1, config.max_num_seqs)",
        "_is_int(sampling.n, 1, 4096)",
        "More choices than sequences may run are let in, and wait for ever where they can not fork one by one.",
        _HUNT,
    ),
    Mutant(
        "step-held-against-the-prompt",
        "vllm-oversize-request-deadlock",
        "https://github.com/vllm-project/vllm/issues/39734",
        _DOOR,
        "    if not config.chunking and needed > config.max_tokens_per_step:",
        "    if not config.chunking and len(request.prompt) > config.max_tokens_per_step:",
        "Without chunks only the prompt is held against a step: behind a preemption it can never be computed again.",
        _HUNT,
    ),
    Mutant(
        "broken-processor-names-nobody",
        "mstar 200",
        "https://github.com/mstar-project/mstar/pull/200",
        _ADJUSTMENTS,
        '            raise Stuck(f"a logits processor must not raise',
        '            raise RunnerError(f"a logits processor must not raise',
        "A processor that raises fails the step without a name, and innocent rows end with an error.",
        _HUNT,
    ),
    Mutant(
        "processor-leaves-no-number",
        "mlx-lm 1527",
        "https://github.com/ml-explore/mlx-lm/pull/1527",
        _ADJUSTMENTS,
        "        if not bool((row < np.inf).all()):\n",
        "        if False:\n",
        "NaN or infinity that a processor leaves is drawn from.",
        _HUNT,
    ),
    Mutant(
        "asked-for-the-impossible-and-distrusted",
        "ours",
        "",
        "engine_under_test/engine.py",
        "            for row in to_blame if distrusts else ():",
        "            for row in to_blame:",
        "Who asks for what can not be done has the prefix that it shares forgotten for everybody.",
        (*_HUNT, "storms"),
    ),
)
