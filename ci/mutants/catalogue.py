"""The list of mutants. Data only; how they are applied is in `loader.py`, how they are hunted in `runner.py`.

Each re-creates the kind of bug that its origin, a public thread, describes; `origin` and `url` name it.
"""

from __future__ import annotations

from ci.mutants import (
    of_adapters,
    of_adjustments,
    of_arithmetic,
    of_decisions,
    of_drafts,
    of_drawn,
    of_grammar,
    of_life,
    of_link,
    of_memory,
    of_models,
    of_numerics,
    of_overcorrection,
    of_overlap,
    of_peers,
    of_proposals,
    of_ranks,
    of_remote,
    of_rows,
    of_runner,
    of_sampling,
    of_served,
    of_speculation,
    of_strangers,
    of_streams,
    of_text,
    of_transfers,
    of_wire,
)
from ci.mutants.mutant import Mutant

FLOOR = 16  # at least as many are killed whenever all are hunted

MUTANTS: tuple[Mutant, ...] = (
    *of_memory.MUTANTS,
    *of_decisions.MUTANTS,
    *of_life.MUTANTS,
    *of_sampling.MUTANTS,
    *of_served.MUTANTS,
    *of_adjustments.MUTANTS,
    *of_speculation.MUTANTS,
    *of_strangers.MUTANTS,
    *of_drafts.MUTANTS,
    *of_drawn.MUTANTS,
    *of_proposals.MUTANTS,
    *of_grammar.MUTANTS,
    *of_arithmetic.MUTANTS,
    *of_numerics.MUTANTS,
    *of_runner.MUTANTS,
    *of_rows.MUTANTS,
    *of_text.MUTANTS,
    *of_models.MUTANTS,
    *of_streams.MUTANTS,
    *of_overlap.MUTANTS,
    *of_transfers.MUTANTS,
    *of_wire.MUTANTS,
    *of_peers.MUTANTS,
    *of_remote.MUTANTS,
    *of_link.MUTANTS,
    *of_ranks.MUTANTS,
    *of_adapters.MUTANTS,
    *of_overcorrection.MUTANTS,
)
