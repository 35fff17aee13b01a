"""Each sentence about peers passes what is good, and finds the one wrong thing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from properties.invariants.peers import PEER_SENTENCES, PeerMoment, PeerSentence, first_violation_of

TRIES = (0.0, 1.0, 3.0, 7.0, 11.0)
GOOD = PeerMoment("a peer", tries=TRIES, least_wait_s=1.0, most_wait_s=4.0, slack_s=0.1)
BAD = {
    "nobody_is_welcomed_without_the_token": replace(GOOD, is_welcomed=True, has_token=False),
    "spoiled_frames_end_their_connection": replace(GOOD, spoiled="length"),
    "faults_cost_their_connection": replace(GOOD, fault="random bytes"),
    "engines_of_good_will_are_served": replace(GOOD, trouble="no answer"),
    "whoever_reads_again_is_read_from_again": replace(GOOD, relieved=True),
    "declared_limits_are_given_and_no_more": replace(GOOD, asked="65 transfers at a time", is_given=True),
    "tries_to_connect_become_rarer": replace(GOOD, tries=(0.0, 1.0, 2.0)),
    "tries_to_connect_never_end": replace(GOOD, tries=(*TRIES, 20.0)),
    "nothing_comes_late": replace(GOOD, told_late=2),
    "new_connections_are_not_congested": replace(GOOD, is_congested_anew=True),
}


@pytest.mark.parametrize("sentence", PEER_SENTENCES, ids=lambda each: each.sentence)
def test_the_one_wrong_thing_is_found_and_nothing_else(sentence: PeerSentence) -> None:
    assert sentence.check(GOOD) is None
    found = first_violation_of(BAD[sentence.check.__name__])
    assert found is not None
    assert found == sentence.check(BAD[sentence.check.__name__])
    assert found.invariant == sentence.identifier
