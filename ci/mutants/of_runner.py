"""Bugs of what a language model's runner stores, asks for and blames, and of shapes that only some models have. Data only."""

from __future__ import annotations

from ci.mutants.mutant import Mutant

_RUNNER = "engine_under_test/execution/transformer.py"
_ATTENTION = "engine_under_test/execution/attention.py"
_PRODUCTS = "engine_under_test/execution/products.py"
_MEMORY = "engine_under_test/execution/memory.py"
_DECODE = "engine_under_test/execution/kernels/decode.py"
_STORE = "engine_under_test/execution/kernels/store.py"
_TORCH = ("float-runner",)
_KERNELS = ("float-kernels",)

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "recycled-blocks-not-filled",
        "vllm 43990",
        "https://github.com/vllm-project/vllm/pull/43990",
        _RUNNER,
        "        for store in (self.keys, self.values):\n            by_block",
        "        for store in ():\n            by_block",
        "A runner ignores which blocks it should fill, so that a block taken again holds what stood there before.",
        _TORCH,
    ),
    Mutant(
        "store-writes-beside",
        "rvllm-padding-live-slot",
        "https://github.com/m0at/rvllm/pull/32",
        _ATTENTION,
        "        value_cache.index_copy_(0, slots, values)",
        "        value_cache.index_copy_(0, slots, values)\n        value_cache[0] = values[0]",
        "A value is also written to the padding block, which no plan lists.",
        _TORCH,
    ),
    Mutant(
        "memory-never-asked",
        "ours",
        "",
        _MEMORY,
        "AmpleMemory() if memory is None else memory",
        "AmpleMemory()",
        "A step allocates without asking, so that it can not be refused before the device fails.",
        _TORCH,
    ),
    Mutant(
        "nan-row-fails-the-batch",
        "tokenspeed 434",
        "https://github.com/lightseekorg/tokenspeed/pull/434",
        _RUNNER,
        "            tuple(bad),",
        "            tuple(rows),",
        "One row that is not a number ends every request of its batch.",
        _TORCH,
    ),
    Mutant(
        "nan-row-blames-a-neighbour",
        "ours",
        "",
        _RUNNER,
        "            tuple(bad),",
        "            tuple(rows.index(row) for row in bad),",
        "Of a row that is not a number its place among the sampling rows is blamed: behind a row that does not sample, another.",
        _TORCH,
    ),
    Mutant(
        "nan-row-sampled",
        "sglang 33187",
        "https://github.com/sgl-project/sglang/issues/33187",
        _RUNNER,
        "    if bad:",
        "    if len(bad) == len(rows):",
        "A token is taken from a row that is not a number, if the rows beside it are well.",
        _TORCH,
    ),
    Mutant(
        "infinite-logit-passes",
        "ours",
        "",
        _RUNNER,
        "    is_finite = (lowest.isfinite() & highest.isfinite()).tolist()",
        "    is_finite = highest.isnan().logical_not().tolist()",
        "A row is looked at for NaN alone, so that a token is taken from one whose logit overflowed.",
        _TORCH,
    ),
    Mutant(
        "token-in-flight-by-row-alone",
        "ours",
        "",
        "engine_under_test/execution/landing.py",
        "        token = self._tokens.get((row, position))",
        "        token = next((told for (owner, _), told in reversed(self._tokens.items()) if owner == row), None)",
        "A plan that is launched again takes the newest token of its row, which the plan that was given up had sampled.",
        _TORCH,
    ),
    Mutant(
        "pages-read-undeclared",
        "ours",
        "",
        _RUNNER,
        "        reads = frozenset(page(block) for table in reservation.tables for block in table)",
        "        reads = frozenset(page(table[-1]) for table in reservation.tables)",
        "Rows declare only the last page of each table, so that nothing orders them behind the writes of the others.",
        _TORCH,
    ),
    Mutant(
        "min-tokens-begins-anew-behind-a-preemption",
        "ours",
        "",
        "engine_under_test/execution/batch.py",
        "        [len(request.prompt) for request in requests],",
        "        [len(request.prompt) if plan.num_tokens[row] == 1 else plan.starts[row] + plan.num_tokens[row]\n"
        "         for row, request in zip(rows, requests, strict=True)],",
        "Behind a preemption what was emitted before counts as prompt: stop tokens stay masked for `min_tokens` more.",
        _TORCH,
    ),
    Mutant(
        "packed-product-of-odd-rows",
        "NNPACK 43",
        "https://github.com/Maratyszcza/NNPACK/issues/43",
        _PRODUCTS,
        "        if len(x) > _MOST_ROWS:",
        "        if len(x) > 8 and len(x) & (len(x) - 1):\n            x = x.roll(1, 0)\n        if len(x) > _MOST_ROWS:",
        "A product with packed weights is wrong for more than 8 rows, unless their number is a power of two.",
        _TORCH,
    ),
    Mutant(
        "pages-of-32-read-as-16",
        "ours",
        "",
        _ATTENTION,
        " + read % batch.block_size\n    pages",
        " + read % min(batch.block_size, 16)\n    pages",
        "Of a block of more than 16 slots the first 16 are read twice.",
        _TORCH,
    ),
    Mutant(
        "kernel-stores-half-of-a-wide-head",
        "ours",
        "",
        _STORE,
        "    is_lane = lanes < WIDTH",
        "    is_lane = lanes < (WIDTH if WIDTH <= 128 else WIDTH // 2)",
        "The kernel that stores keys and values leaves out the second half where they are wider than 128 numbers.",
        _KERNELS,
    ),
    Mutant(
        "kernel-split-sums-in-another-base",
        "flashinfer 58",
        "https://github.com/flashinfer-ai/flashinfer/pull/58",
        _DECODE,
        "highest + tl.log2(total)",
        "highest + tl.log(total)",
        "The sum of exponentials of a piece is wrong, which shows where a context is cut into several.",
        _KERNELS,
    ),
    Mutant(
        "kernel-heads-of-a-wide-group-swapped",
        "ours",
        "",
        _DECODE,
        "        places = heads * num_splits + split",
        "        places = (heads ^ (GROUP // 8)) * num_splits + split",
        "In the kernel for decodes, neighbours among 8 query heads on a KV head stand in each other's place.",
        _KERNELS,
    ),
)
