"""Which mutants a gate hunts beside its suites: five, drawn by the seed, among those that can be hunted in it.

Owns the drawing. Never hunts one.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from ci.mutants.mutant import Mutant
from ci.mutants.runner import missing_extras, suites_of
from properties.suite import Profile

MUTANTS_A_GATE = 5
# Of those that name their suites: torch is imported for each, and its workload is shrunk on a language model.
NAMED_A_GATE = {Profile.QUICK: 1, Profile.PR: 3}


def draw_mutants(mutants: Sequence[Mutant], seed: int, profile: Profile) -> tuple[Mutant, ...]:
    """Five, drawn by the seed; at night every one that this installation can hunt.

    A mutant whose suites are not of the profile, or lack a package, is not drawn: nothing in this gate would show that they
    are valid without it.
    """
    able = tuple(mutant for mutant in mutants if not missing_extras(mutant) and _is_of(profile, mutant))
    if profile is Profile.NIGHTLY or len(able) <= MUTANTS_A_GATE:
        return able
    drawn: list[Mutant] = []
    left = NAMED_A_GATE[profile]
    for mutant in random.Random(seed).sample(able, len(able)):
        if len(drawn) == MUTANTS_A_GATE:
            break
        if not mutant.hunts or left:
            drawn.append(mutant)
            left -= bool(mutant.hunts)
    return tuple(drawn)


def _is_of(profile: Profile, mutant: Mutant) -> bool:
    return all(profile in suite.profiles for suite in suites_of(mutant))
