"""Bugs of structured output: masks, their rows, and the state behind an output. Corpus class 11. Data only."""

from __future__ import annotations

from ci.mutants.mutant import Mutant

_STEPS = "engine_under_test/sampling/adjustments.py"
_NUMPY = "engine_under_test/sampling/sampler.py"
_TORCH = "engine_under_test/sampling/torch_sampler.py"
_GRAMMAR = "engine_under_test/sampling/grammar.py"
_ASKED = "engine_under_test/execution/asked.py"
_TEXT = "engine_under_test/sampling/grammar_text.py"
_STRUCTURED = ("structured-output",)
_LIGHT = ("lightllm 933", "https://github.com/ModelTC/LightLLM/pull/933")
_WRITTEN = "    return f\"start: %json {_written({**schema, 'x-guidance': _LAYOUT})}\"\n"


def _without(keywords: tuple[str, ...]) -> str:
    """A schema written without these keywords, wherever they stand."""
    left = f"{{key: of(each) for key, each in value.items() if key not in {keywords!r}}}"
    return (
        "    def of(value: Any) -> Any:\n        if isinstance(value, list):\n            return [of(each) for each in value]\n"
        f"        return {left} if isinstance(value, dict) else value\n\n" + _WRITTEN.replace("**schema", "**of(schema)")
    )


MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "stop-token-before-the-text-is-complete",
        "vllm-grammar-stop-ids",
        "https://github.com/vllm-project/vllm/pull/50595",
        _GRAMMAR,
        "        mask[list(ends)] = may_end",
        "        mask[list(ends)] = True",
        "A request's stop tokens are not masked until its grammar may end.",
        _STRUCTURED,
    ),
    Mutant(
        "grammar-mask-on-rows-without-one",
        "tgi-grammar-mask-all-rows",
        "https://github.com/huggingface/text-generation-inference/pull/1676",
        _STEPS,
        "    if spec is None:\n        return\n    if grammars is None:",
        "    from engine_under_test.types import GrammarKind\n\n    if spec is None and grammars is None:\n        return\n"
        '    spec = spec or GrammarSpec(GrammarKind.REGEX, ("(?s:.*)",))\n    if grammars is None:',
        "Rows without a grammar are masked by that of any text, which has no tokens that are no text.",
        _STRUCTURED,
    ),
    Mutant(
        "grammar-state-from-the-start",
        "tgi-grammar-state-reset-on-concat",
        "https://github.com/huggingface/text-generation-inference/pull/1610",
        _GRAMMAR,
        "        return 0, self._compile(spec).deep_copy()",
        "        return len(output), self._compile(spec).deep_copy()",
        "Where no state is kept of an output, its grammar begins again, as if nothing had been said.",
        _STRUCTURED,
    ),
    Mutant(
        "grammar-mask-without-tokens-in-flight",
        "sgl-grammar-early-commit",
        "https://github.com/sgl-project/sglang/pull/25361",
        _ASKED,
        "        known = output + tuple([in_flight(plan.row_id(row), position) for position in missing])",
        "        known = output",
        "The mask is that behind the tokens that the host knew at the launch, one or two too few.",
        _STRUCTURED,
    ),
    Mutant(
        "token-0-where-the-mask-leaves-none",
        "slim-empty-mask-row",
        "https://github.com/QuixiAI/SlimServe/pull/8",
        _STEPS,
        "    if params.grammar is not None and row.max() == -np.inf:",
        "    if params.grammar is not None and row.max() == np.inf:",
        "A row of which the steps leave nothing is drawn from all the same: token 0, which its grammar forbids.",
        _STRUCTURED,
    ),
    Mutant(
        "grammar-state-behind-all-drafts",
        "ours",
        "",
        _ASKED,
        "        found.append(History(prompt, known + drafts[row][: max(end - first, 0)]))",
        "        found.append(History(prompt, known + drafts[row]))",
        "Every place of a row with drafts is masked as if all of them stood: the state is advanced by tokens that fall.",
        _STRUCTURED,
    ),
    Mutant(
        "grammar-mask-of-a-row-further-up",
        "ours",
        "",
        _NUMPY,
        "    for row, (params, history) in enumerate(columns):\n        if history is not None and params.is_adjusted:",
        "    for row, (params, history) in enumerate([each for each in columns if each[1] is not None]):\n"
        "        if history is not None and params.is_adjusted:",
        "Masks are counted among the rows that have one and applied by that number, so a plain row shifts those behind it.",
        _STRUCTURED,
    ),
    Mutant(
        "grammar-mask-behind-top-p",
        "ours",
        "",
        _TORCH,
        "            why = stuck_after(logits_of_row[0], params, history, processors, grammars)",
        "            from engine_under_test.sampling.processors import truncate\n\n"
        "            if params.grammar is not None and params.temperature > 0:\n"
        "                truncate(logits_of_row[0], params)\n"
        "            why = stuck_after(logits_of_row[0], params, history, processors, grammars)",
        "Min-p, top-k and top-p choose among all tokens, and the mask is applied to what they leave.",
        _STRUCTURED,
    ),
    Mutant(
        "grammar-state-shared-by-forks",
        "ours",
        "",
        _GRAMMAR,
        "                return known, state.matcher.deep_copy()",
        "                return known, state.matcher",
        "The state behind an output is moved on, not copied, so whoever branches off there has that of another.",
        _STRUCTURED,
    ),
    Mutant(
        "grammar-state-by-the-last-token",
        "ours",
        "",
        _GRAMMAR,
        "        if found is not None:\n            self._states.move_to_end((spec, output))\n",
        "        found = found or self._states.get((spec, output[-1:]))\n        if found is not None:\n",
        "A state is found by the last token of an output, though another output ends in it too.",
        _STRUCTURED,
    ),
    Mutant(
        "grammar-compiled-once-for-a-first-source",
        *_LIGHT,
        _GRAMMAR,
        "        matcher = self._compiled.get(spec)\n",
        "        spec = next((each for each in self._compiled if (each.kind, each.sources[0]) == (spec.kind, spec.sources[0])), spec)\n"
        "        matcher = self._compiled.get(spec)\n",
        "What was compiled is found by the kind and the first source: other choices behind the same first one get its masks.",
        _STRUCTURED,
    ),
    Mutant(
        "verdict-once-for-a-first-source",
        *_LIGHT,
        _GRAMMAR,
        "            if spec not in self._verdicts:\n",
        "            spec = GrammarSpec(spec.kind, spec.sources[:1]) if len(spec.sources) > 1 else spec\n"
        "            if spec not in self._verdicts:\n",
        "Whether a grammar can be used is decided by its first source: what must be refused passes the door, and fails in a step.",
        _STRUCTURED,
    ),
    Mutant(
        "choices-in-any-case",
        "ours",
        "",
        _TEXT,
        "    return f\"start: /{'|'.join(spelled)}/\"",
        "    return f\"start: /(?i:{'|'.join(spelled)})/\"",
        "A choice may be said in other letters than its own: YES for Yes.",
        _STRUCTURED,
    ),
    Mutant(
        "classes-of-ascii-alone",
        "llguidance 158",
        "https://github.com/guidance-ai/llguidance/issues/158",
        _TEXT,
        "use_ascii=''",
        "use_ascii='dw'",
        "In a regular expression \\\\d and \\\\w are those of ASCII, though they are said to be those of Unicode.",
        _STRUCTURED,
    ),
    Mutant(
        "keywords-left-out-in-silence",
        "sglang 40083",
        "https://github.com/sgl-project/sglang/issues/40083",
        _TEXT,
        _WRITTEN,
        _without(
            ("uniqueItems", "contains", "not", "if", "then", "else", "dependentRequired", "propertyNames", "maxProperties")
        ),
        "Keywords that the library does not know, and one that it does, are taken out of a schema, which is then accepted.",
        _STRUCTURED,
    ),
    Mutant(
        "multiples-and-open-bounds-left-out",
        "vllm 12131",
        "https://github.com/vllm-project/vllm/issues/12131",
        _TEXT,
        _WRITTEN,
        _without(("multipleOf", "exclusiveMinimum", "exclusiveMaximum")),
        "A schema's numbers need be no multiples, and may reach a bound that they must stay within.",
        _STRUCTURED,
    ),
    Mutant(
        "size-of-each-source-alone",
        "llama.cpp 17381",
        "https://github.com/ggml-org/llama.cpp/pull/17381",
        _TEXT,
        "    size = sum(len(source) for source in spec.sources)\n",
        "    size = max(len(source) for source in spec.sources)\n",
        "A grammar of any size passes the door, cut into many choices.",
        _STRUCTURED,
    ),
    Mutant(
        "dead-end-that-fails-the-step",
        "ours",
        "",
        _GRAMMAR,
        "        if matcher.is_error() and not matcher.get_error().startswith(_NOTHING_FOLLOWS):\n",
        "        if matcher.is_error():\n",
        "Where no token of the vocabulary spells what a grammar asks for next, the mask is an exception, not an empty one.",
        _STRUCTURED,
    ),
)
