"""Bugs of a language model's step: positions, heads, masks, pages, batches and kernels; corpus class 12. Data only."""

from __future__ import annotations

from ci.mutants.mutant import Mutant

_LLAMA = "engine_under_test/model/llama.py"
_BATCH = "engine_under_test/execution/batch.py"
_ATTENTION = "engine_under_test/execution/attention.py"
_RUNNER = "engine_under_test/execution/transformer.py"
_DECODE = "engine_under_test/execution/kernels/decode.py"
_PREFILL = "engine_under_test/execution/kernels/prefill.py"
_TORCH = ("float-settings",)
_KERNELS = ("float-kernels",)
_KERNELS_ALONE = ("kernel-numbers",)

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "rope-a-position-late",
        "vllm-mlx 311",
        "https://github.com/waybarrios/vllm-mlx/pull/311",
        _BATCH,
        "    positions = chain.from_iterable(map(range, plan.starts, length_list))",
        "    both = zip(plan.starts, length_list, strict=True)\n"
        "    positions = (place + (start > 0) for start, end in both for place in range(start, end))",
        "What continues behind keys that are there already is turned by one position too many.",
        _TORCH,
    ),
    Mutant(
        "rope-pairs-neighbours",
        "shainet 111",
        "https://github.com/NeuraLegion/shainet/pull/111",
        _LLAMA,
        "    left, right = heads.chunk(2, dim=-1)\n    return torch.cat((left * by.cos - right * by.sin, right * by.cos + left * by.sin), dim=-1)",
        "    left, right = heads[..., ::2], heads[..., 1::2]\n    return torch.stack((left * by.cos - right * by.sin, right * by.cos + left * by.sin), dim=-1).flatten(-2)",
        "Rotary positions pair neighbours where the weights pair halves.",
        _TORCH,
    ),
    Mutant(
        "kv-heads-tiled",
        "jax-js 180",
        "https://github.com/ekzhang/jax-js/pull/180",
        _ATTENTION,
        "            keys = key_cache[slots].repeat_interleave(group, dim=1)\n            values = value_cache[slots].repeat_interleave(group, dim=1)",
        "            keys = key_cache[slots].repeat(1, group, 1)\n            values = value_cache[slots].repeat(1, group, 1)",
        "Query heads read KV heads by turns in place of one KV head a group.",
        _TORCH,
    ),
    Mutant(
        "mask-a-token-wide",
        "tt-metal 48700",
        "https://github.com/tenstorrent/tt-metal/pull/48700",
        _ATTENTION,
        "    return torch.arange(length, device=device) <= torch.arange(start, length, device=device)[:, None]",
        "    return torch.arange(length, device=device) <= torch.arange(start + 1, length + 1, device=device)[:, None]",
        "A token of a chunk reads the one behind it.",
        _TORCH,
    ),
    Mutant(
        "mask-without-the-cached",
        "hyprstream 1521",
        "https://github.com/hyprstream/hyprstream/pull/1521",
        _ATTENTION,
        "    return torch.arange(length, device=device) <= torch.arange(start, length, device=device)[:, None]",
        "    return torch.arange(length, device=device) <= torch.arange(length - start, device=device)[:, None]",
        "The causal mask of a chunk begins at position 0, so that what came before it is hidden.",
        _TORCH,
    ),
    Mutant(
        "slots-of-later-rows-shifted",
        "jax-cacheloc-page-pad",
        "https://github.com/sgl-project/sglang-jax/issues/20",
        _ATTENTION,
        "    slots = batch.tables[members].gather(1, read // batch.block_size).long() * batch.block_size + read % batch.block_size",
        "    slots = batch.tables[members].gather(1, read // batch.block_size).long() * batch.block_size + (read + members[:, None]) % batch.block_size",
        "The second row and later ones read the wrong slots of their own pages.",
        _TORCH,
    ),
    Mutant(
        "padding-columns-read",
        "nano-graph-stale-block-table",
        "https://github.com/GeeeekExplorer/nano-vllm/pull/191",
        _ATTENTION,
        "    read = columns.minimum(ends - 1)  # [rows, longest]",
        "    read = columns.expand(len(rows), -1)",
        "Shorter rows of a batch read through the columns of the table that pad it, and mask what they find.",
        _TORCH,
    ),
    Mutant(
        "metadata-of-an-earlier-step",
        "vllm-stale-cudagraph-context",
        "https://github.com/vllm-project/vllm/pull/44868",
        _ATTENTION,
        "        if self._batch is not batch:",
        "        if self._batch is None or (self._batch.row_begin_list, self._batch.length_list) != (batch.row_begin_list, batch.length_list):",
        "A step of the same shape as the one before it reads the pages of that one.",
        _TORCH,
    ),
    Mutant(
        "one-pending-token-filled",
        "vllm-async-preempt-token-refresh",
        "https://github.com/vllm-project/vllm/pull/26385",
        _RUNNER,
        "        for place, row in batch.pending:",
        "        for place, row in batch.pending[:1]:",
        "Of the tokens in flight only the first one's place is filled; the other rows compute a placeholder.",
        _TORCH,
    ),
    Mutant(
        "kernel-slots-of-later-rows-shifted",
        "jax-cacheloc-page-pad",
        "https://github.com/sgl-project/sglang-jax/issues/20",
        _DECODE,
        "            cells = (blocks * BLOCK + positions % BLOCK) * (KV_HEADS * HEAD) + kv_head * HEAD",
        "            cells = (blocks * BLOCK + (positions + row) % BLOCK) * (KV_HEADS * HEAD) + kv_head * HEAD",
        "In the kernel for decodes, the second row and later ones read the wrong slots of their own pages.",
        _KERNELS,
    ),
    Mutant(
        "kernel-first-kv-head-only",
        "ONNXim 34",
        "https://github.com/PSAL-POSTECH/ONNXim/pull/34",
        _DECODE,
        "            cells = (blocks * BLOCK + positions % BLOCK) * (KV_HEADS * HEAD) + kv_head * HEAD",
        "            cells = (blocks * BLOCK + positions % BLOCK) * (KV_HEADS * HEAD) + kv_head * GROUP % KV_HEADS * HEAD",
        "In the kernel for decodes, every group of query heads reads the first KV head.",
        _KERNELS,
    ),
    Mutant(
        "kernel-chunk-not-causal",
        "fi-multi-token-decode-plan",
        "https://github.com/flashinfer-ai/flashinfer/pull/3871",
        _PREFILL,
        "            is_seen = is_read[None, :] & (positions[None, :] <= start + ordinals[:, None])",
        "            is_seen = is_read[None, :] & (positions[None, :] < end + 0 * ordinals[:, None])",
        "In the kernel for chunks, queries of one tile read each other's positions.",
        _KERNELS,
    ),
    Mutant(
        "kernel-fades-too-late",
        "ours",
        "",
        _PREFILL,
        "            total = total * fading + tl.reduce(weights, 1, SUM)",
        "            total = total + tl.reduce(weights, 1, SUM)",
        "In the kernel for chunks, the sum of exponentials keeps its scale when a higher score raises that of the rest.",
        _KERNELS,
    ),
    Mutant(
        "kernel-page-product-of-32-bits",
        "fi-page-index-overflow",
        "https://github.com/flashinfer-ai/flashinfer/pull/3136",
        _PREFILL,
        "            blocks = tl.load(table + positions // BLOCK, mask=is_read, other=0).to(tl.int64)",
        "            blocks = tl.load(table + positions // BLOCK, mask=is_read, other=0)",
        "In the kernel for chunks, the product of page number and size wraps in a store of more than 2**31 numbers.",
        _KERNELS_ALONE,
    ),
    Mutant(
        "kernel-lanes-of-the-next-group",
        "ours",
        "",
        _DECODE,
        "        is_member = members < GROUP",
        "        is_member = kv_head * GROUP + members < KV_HEADS * GROUP",
        "In the kernel for decodes, lanes behind a group write results of the next one, which is right if that writes later.",
        _KERNELS_ALONE,
    ),
    Mutant(
        "kernel-piece-of-nobody-added",
        "ours",
        "",
        _DECODE,
        "    num_pieces = (tl.load(lengths + row) + SPLIT - 1) // SPLIT",
        "    num_pieces = tl.load(lengths + row) // SPLIT + 1",
        "The reduction adds a piece that no program wrote when a context ends with a piece, from memory as it was allocated.",
        _KERNELS_ALONE,
    ),
)
