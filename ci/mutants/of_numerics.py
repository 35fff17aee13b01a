"""Bugs of a language model's numbers: constants, long contexts, and what is computed in bfloat16; corpus class 12. Data only."""

from __future__ import annotations

from ci.mutants.mutant import Mutant

_LLAMA = "engine_under_test/model/llama.py"
_ATTENTION = "engine_under_test/execution/attention.py"
_TILES = "engine_under_test/execution/tiles.py"
_HUNTS = ("float-numerics",)
_TURNS = "    turns = positions.to(torch.float64)[:, None, None] * config.rope_theta**-exponents"
_MEAN_SQUARE = "    wide = wide * torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + eps)"

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "eps-hard-coded",
        "llama.cpp 2373",
        "https://github.com/ggml-org/llama.cpp/issues/2373",
        _LLAMA,
        _MEAN_SQUARE,
        "    wide = wide * torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + 1e-5)",
        "RMSNorm adds 1e-5, whatever the configuration says.",
        _HUNTS,
    ),
    Mutant(
        "theta-ignored",
        "airllm 368",
        "https://github.com/lyogavin/airllm/pull/369",
        _LLAMA,
        _TURNS,
        "    turns = positions.to(torch.float64)[:, None, None] * 10000.0**-exponents",
        "Rotary positions turn by a base of 10,000, whatever the configuration says.",
        _HUNTS,
    ),
    Mutant(
        "head-always-tied",
        "ours",
        "",
        _LLAMA,
        "    return product(normed, weights.head).float()",
        "    return product(normed, weights.embedding).float()",
        "The output head is the embedding, also where the model has its own.",
        _HUNTS,
    ),
    Mutant(
        "rope-ends-at-1024",
        "ours",
        "",
        _LLAMA,
        _TURNS,
        "    turns = positions.to(torch.float64).clamp(max=1023)[:, None, None] * config.rope_theta**-exponents",
        "A table of rotations has 1,024 rows; every later position reads the last one.",
        _HUNTS,
    ),
    Mutant(
        "positions-in-bfloat16",
        "transformers 29285",
        "https://github.com/huggingface/transformers/pull/29285",
        _LLAMA,
        _TURNS,
        "    turns = positions.to(dtype).to(torch.float64)[:, None, None] * config.rope_theta**-exponents",
        "Positions are rounded to the type of the weights: in bfloat16 every other one is wrong from 257 on.",
        _HUNTS,
    ),
    Mutant(
        "norm-in-bfloat16",
        "llama 1048",
        "https://github.com/meta-llama/llama/issues/1048",
        _LLAMA,
        "    wide = hidden.float()",
        "    wide = hidden",
        "RMSNorm is computed in the type of the weights.",
        _HUNTS,
    ),
    Mutant(
        "softmax-in-bfloat16",
        "ours",
        "",
        _ATTENTION,
        "    attended = functional.scaled_dot_product_attention(folded, keys, values, attn_mask=group.mask)",
        "    scores = folded @ keys.transpose(-1, -2) * size**-0.5\n    scores = scores if group.mask is None else scores.masked_fill(~group.mask, -torch.inf)\n    powers = (scores - scores.amax(-1, keepdim=True)).exp()\n    attended = powers @ values / powers.sum(-1, keepdim=True)",
        "Scores, exponentials and their sums are kept in the type of the weights.",
        _HUNTS,
    ),
    Mutant(
        "tiles-keep-their-scale",
        "ours",
        "",
        _TILES,
        "        summed = summed * shrink + torch.bmm(weights.to(value.dtype), value).float()",
        "        summed = summed + torch.bmm(weights.to(value.dtype), value).float()",
        "In the batch-invariant mode, what earlier tiles of keys came to keeps its scale when a later one has a higher score.",
        _HUNTS,
    ),
    Mutant(
        "tiles-without-maximum",
        "ours",
        "",
        _TILES,
        "        higher = torch.maximum(best, scores.amax(dim=-1, keepdim=True))",
        "        higher = torch.zeros_like(best)",
        "In the batch-invariant mode, exponentials are taken of scores as they are, and overflow where these are large.",
        _HUNTS,
    ),
)
