"""The proposers of the harness: what they name, what they keep, and what the suite of speculating worlds finds."""

from __future__ import annotations

import pytest

from engine_under_test.drafting import Drafting
from engine_under_test.errors import BadInput
from engine_under_test.sampling.noise import PhiloxNoise
from engine_under_test.sampling.proposers import PromptLookup
from engine_under_test.sampling.speculation import Ask, Repair
from engine_under_test.sequence import Sequence
from engine_under_test.types import Request, RowId, SamplingParams
from models import speculation_suite
from models.law import Law
from models.law_of_drafts import verdict
from models.proposers import Keeping, Knowing, proposer_from
from properties.suite import Profile, SuiteContext
from properties.verdict import Verdict

ROW = RowId("a", 0, 1, 0)
NOISE = PhiloxNoise()


def _ask(*tokens: int) -> Ask:
    return Ask(ROW, tokens, SamplingParams(max_tokens=9), 3, 2)


def test_the_knowing_one_names_the_same_for_the_same_text_whatever_was_asked_before() -> None:
    one, other = Knowing(16, 3), Knowing(16, 3)
    texts = [(1, 2, *range(extra)) for extra in range(8)]
    forwards = {text: one.propose([_ask(*text)], NOISE).drafts for text in texts}
    backwards = {text: other.propose([_ask(*text)], NOISE).drafts for text in reversed(texts)}
    assert forwards == backwards
    assert len({len(drafts) for (drafts,) in forwards.values()}) > 1, "as many as the text says, not always the same"


def test_what_is_kept_is_cut_to_what_stands() -> None:
    keeping = Keeping(PromptLookup(3))
    assert keeping.propose([_ask(1, 2, 1)], NOISE).drafts == ((2, 1),)
    keeping.repair([Repair(ROW, 1, 5)])
    assert keeping.kept[ROW] == [1, 2, 1, 2]
    keeping.repair([Repair(ROW, 0, 0)])
    assert keeping.kept == {}
    assert keeping.strange == []


def test_drafts_that_fell_and_were_not_taken_back_are_strange() -> None:
    keeping = Keeping(PromptLookup(3))
    keeping.propose([_ask(1, 2, 1)], NOISE)
    keeping.propose([_ask(1, 2, 1, 7)], NOISE)
    assert len(keeping.strange) == 1


@pytest.mark.parametrize(
    "spec", [{}, {"proposer": "lookup"}, {"proposer": "nobody", "width": 1}, {"proposer": "lookup", "width": 0}]
)
def test_a_description_that_says_no_proposer_is_refused(spec: object) -> None:
    with pytest.raises(BadInput):
        proposer_from(spec, 16)


def test_a_proposer_that_is_not_told_of_an_end_makes_the_suite_invalid(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Drafting, "forget", lambda _drafting, _seq, _row: None)
    result = speculation_suite.SPECULATION.run(SuiteContext(Profile.QUICK, 5))
    assert result.verdict is Verdict.INVALID
    assert result.failures[0].violation.invariant == "SC-13"


def test_a_proposer_that_is_not_told_what_fell_makes_the_suite_invalid(monkeypatch: pytest.MonkeyPatch) -> None:
    def landed(_drafting: Drafting, seq: Sequence, num_accepted: int) -> None:
        del seq, num_accepted

    monkeypatch.setattr(Drafting, "landed", landed)
    result = speculation_suite.SPECULATION.run(SuiteContext(Profile.QUICK, 5))
    assert result.verdict is Verdict.INVALID
    assert result.failures[0].violation.invariant == "SC-13"


def test_the_law_of_drafts_keeps_all_where_both_laws_agree() -> None:
    law = Law(16)
    track = law.open(Request("a", (1, 2, 3), SamplingParams(temperature=1.0, seed=5)), 0)
    track.tokens += [4, 9]
    law.extend([track], [5])
    proposed = [law.chances(track, 3), law.chances(track, 4)]
    assert all(abs(sum(chances) - 1) < 1e-12 for chances in proposed)
    assert verdict(law, track, 3, (4, 9), proposed)[:2] == [4, 9]


def test_the_law_of_drafts_lets_a_draft_fall_that_the_target_never_says() -> None:
    law = Law(16)
    params = SamplingParams(temperature=1.0, seed=5, top_k=1)
    track = law.open(Request("a", (1, 2, 3), params), 0)
    law.extend([track], [3])
    said = law.chances(track, 3).index(1.0)
    draft = (said + 1) % 16
    track.tokens.append(draft)
    assert verdict(law, track, 3, (draft,), [[1 / 16] * 16]) == [said]
