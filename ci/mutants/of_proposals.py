"""Bugs of proposers and of what decides how many drafts they name: corpus class 5. Data only."""

from __future__ import annotations

from ci.mutants.mutant import Mutant

_DRAFT_MODEL = "engine_under_test/sampling/draft_model.py"
_DRAFTING = "engine_under_test/drafting.py"
_CONTROLLER = "engine_under_test/sampling/controller.py"
_HUNTS = ("proposals",)

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "unlikely-drafts-dropped",
        "vllm 35301",
        "https://github.com/vllm-project/vllm/pull/35301",
        _DRAFT_MODEL,
        "            for number, row in enumerate(rows):\n                drafts[row].append(found[number])\n",
        "            for number, row in enumerate(rows):\n                if float(table[number, found[number]]) < 0.02:\n                    widths[row] = place\n                    continue\n                drafts[row].append(found[number])\n",
        "A draft of little confidence is drawn and then not proposed, which favours the others.",
        _HUNTS,
    ),
    Mutant(
        "draft-store-not-rewound",
        "vllm-metal 716",
        "https://github.com/vllm-project/vllm-metal/pull/716",
        _DRAFT_MODEL,
        "            starts.append(min(_common(kept.tokens, text), len(text) - 1))",
        "            starts.append(min(len(kept.tokens), len(text) - 1))",
        "A draft model goes on from what it computed of drafts that fell, if nobody told it of their fall.",
        _HUNTS,
    ),
    Mutant(
        "draft-rows-never-freed",
        "atlas 225",
        "https://github.com/Avarok-Cybersecurity/atlas/pull/225",
        _DRAFT_MODEL,
        "            if each.confirmed == 0:\n                del self._rows[each.row]\n",
        "",
        "A draft model keeps an entry of every row that there ever was.",
        _HUNTS,
    ),
    Mutant(
        "lookup-takes-the-first-place",
        "onnxruntime-genai 2314",
        "https://github.com/microsoft/onnxruntime-genai/pull/2314",
        "engine_under_test/sampling/proposers.py",
        "    for begin in range(len(tokens) - size - 1, -1, -1):",
        "    for begin in range(len(tokens) - size):",
        "Prompt lookup names what followed the first place of an ending, not the last one.",
        _HUNTS,
    ),
    Mutant(
        "added-tokens-counted-as-drafts",
        "vllm 2658",
        "https://github.com/vllm-project/vllm/pull/2658",
        _DRAFTING,
        "sum([len(found) - 1 for num, found in zip(plan.num_drafts, tokens, strict=True) if num])",
        "sum([len(found) for num, found in zip(plan.num_drafts, tokens, strict=True) if num])",
        "The token behind the drafts that stand counts as one of them.",
        _HUNTS,
    ),
    Mutant(
        "overlapped-time-counted-twice",
        "sglang 24055",
        "https://github.com/sgl-project/sglang/pull/24055",
        _DRAFTING,
        "now - max(began, self._landed_s)",
        "now - began",
        "With overlap the time of a plan holds that of the plan in front of it.",
        _HUNTS,
    ),
    Mutant(
        "width-blind-to-the-queue",
        "vllm 4592",
        "https://github.com/vllm-project/vllm/pull/4592",
        _DRAFTING,
        "Conditions(len(running), book.num_free, book.config.block_size, len(book.waiting))",
        "Conditions(len(running), book.num_free, book.config.block_size)",
        "How many requests wait is no matter for how many drafts there are.",
        _HUNTS,
    ),
    Mutant(
        "drafts-behind-a-fall-judged",
        "vllm 2658",
        "https://github.com/vllm-project/vllm/pull/2658",
        _CONTROLLER,
        "        for depth in range(min(trial.num_accepted + 1, trial.width)):",
        "        for depth in range(trial.width):",
        "Drafts behind one that fell count as judged and fallen, so that wide drafting looks worse than it is.",
        _HUNTS,
    ),
    Mutant(
        "tries-go-down-only",
        "TensorRT-LLM 16888",
        "https://github.com/NVIDIA/TensorRT-LLM/pull/16888",
        _CONTROLLER,
        "        self._tries += 1\n",
        "",
        "Only narrower widths are tried, so that a width that was left for a while is never found again.",
        _HUNTS,
    ),
    Mutant(
        "refused-drafting-counts-as-computed",
        "ours",
        "",
        "engine_under_test/sampling/draft_model.py",
        "            del kept.tokens[starts[-1] :]  # nothing from here on holds until it has been computed\n",
        "            kept.tokens = list(text)\n",
        "A step of the draft model that is refused leaves tokens behind as computed: all drafts of these rows are nonsense.",
        ("proposals",),
    ),
)
