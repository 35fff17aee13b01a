"""Oracle two, written by others: `transformers`' LlamaForCausalLM on the very same weights, eager attention.

Owns the translation of our weights into its configuration and state. Never: arithmetic of our own, or a download. The
library is loaded on first use, since that takes seconds. Whatever type it is asked for, `transformers` takes the angles of
the rotary positions and the mean squares of RMSNorm in float32.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch

from engine_under_test.errors import BadInput
from engine_under_test.model.weights import LlamaWeights

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM

_NAMES = {
    "attention_norm": "input_layernorm",
    "q": "self_attn.q_proj",
    "k": "self_attn.k_proj",
    "v": "self_attn.v_proj",
    "o": "self_attn.o_proj",
    "mlp_norm": "post_attention_layernorm",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
}


class HfOracle:
    """One model of `transformers`, in one type."""

    def __init__(
        self,
        weights: LlamaWeights,
        dtype: torch.dtype = torch.float32,
        given: Callable[[int], torch.Tensor] | None = None,
    ) -> None:
        self._model = _model(weights.to(dtype=dtype))
        self._given = given

    def logits(self, tokens: Sequence[int], *, begin: int = 0) -> torch.Tensor:
        """[len(tokens) - begin, vocab]: one dense pass without a cache, as `reference.reference_logits`."""
        with torch.inference_mode():
            found: torch.Tensor = self._model(
                **self._inputs(tokens), use_cache=False, logits_to_keep=len(tokens) - begin
            ).logits
        return found[0]

    def _inputs(self, tokens: Sequence[int]) -> dict[str, torch.Tensor]:
        """A negative token stands for an embedding that `given` knows."""
        if self._given is None or min(tokens, default=0) >= 0:
            return {"input_ids": torch.tensor([list(tokens)])}
        rows = self._model.get_input_embeddings()(torch.tensor([max(token, 0) for token in tokens]))
        for place, token in enumerate(tokens):
            if token < 0:
                rows[place] = self._given(token)
        return {"inputs_embeds": rows[None]}


def state_of(weights: LlamaWeights) -> dict[str, torch.Tensor]:
    """The weights under the names that `transformers` gives them; no tensor is copied."""
    state = {"model.embed_tokens.weight": weights.embedding, "model.norm.weight": weights.final_norm}
    for number, layer in enumerate(weights.layers):
        state |= {f"model.layers.{number}.{name}.weight": getattr(layer, column) for column, name in _NAMES.items()}
    return state | {"lm_head.weight": weights.head}


def missing_extra(error: ImportError) -> BadInput:
    """The sentence for an installation without `transformers`."""
    return BadInput(
        f"the second oracle needs the extra `reference`, found that {error.name} can not be imported; "
        "say pip install -c constraints.txt -e '.[model,reference]'"
    )


def _model(weights: LlamaWeights) -> LlamaForCausalLM:
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # nothing is fetched, and nobody is told of a run
    try:
        from transformers import LlamaConfig, LlamaForCausalLM
        from transformers.initialization import no_init_weights
    except ImportError as error:
        raise missing_extra(error) from error
    shape = weights.config
    config = LlamaConfig(
        vocab_size=shape.vocab_size,
        hidden_size=shape.hidden_size,
        intermediate_size=shape.intermediate_size,
        num_hidden_layers=shape.num_layers,
        num_attention_heads=shape.num_heads,
        num_key_value_heads=shape.num_kv_heads,
        head_dim=shape.head_size,
        max_position_embeddings=shape.max_positions,
        rms_norm_eps=shape.rms_eps,
        rope_parameters={"rope_type": "default", "rope_theta": shape.rope_theta},
        tie_word_embeddings=shape.ties_head,
        hidden_act="silu",
        attention_bias=False,
        mlp_bias=False,
    )
    config._attn_implementation = "eager"
    with no_init_weights():
        model = LlamaForCausalLM(config)
    model.load_state_dict(state_of(weights), assign=True, strict=True)
    model.train(False)
    return model
