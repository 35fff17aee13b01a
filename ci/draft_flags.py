"""`--draft` and `--draft-width`: who proposes what the model will say.

Owns: the names a person may give, and the engine's side of a draft model. Never: whether a draft stands.
"""

from __future__ import annotations

from collections.abc import Callable

from engine_under_test.drafting import Drafting
from engine_under_test.errors import BadInput
from engine_under_test.execution.transformer import TransformerRunner
from engine_under_test.model.weights import LlamaWeights
from engine_under_test.sampling.draft_model import DraftModel
from engine_under_test.sampling.proposers import PromptLookup
from engine_under_test.seams import Grammars

LOOKUP = "lookup"
MOST_DRAFTS = 16


def drafting_of(
    name: str | None,
    width: int,
    vocab_size: int,
    num_blocks: int,
    block_size: int,
    weights_of: Callable[[str], LlamaWeights],
    grammars: Grammars | None = None,
) -> Drafting | None:
    """None without a name. ``weights_of``: those of a model by its name. Raises BadInput."""
    if name is None:
        return None
    refuse_width(width)
    if name == LOOKUP:
        return Drafting(PromptLookup(width))
    weights = weights_of(name)
    if weights.config.vocab_size != vocab_size:
        raise BadInput(
            f"a draft model has the vocabulary of the model that it speaks for, {vocab_size} tokens, found "
            f"{weights.config.vocab_size} in {name}; name another, or --draft {LOOKUP}"
        )
    runner = TransformerRunner(weights, num_blocks, block_size)
    return Drafting(DraftModel(runner, num_blocks, block_size, width, grammars=grammars))


def refuse_width(width: int) -> None:
    """Raises BadInput."""
    if not 1 <= width <= MOST_DRAFTS:
        raise BadInput(f"--draft-width must be from 1 to {MOST_DRAFTS}, found {width}; correct it")
