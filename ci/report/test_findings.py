"""Claims about one bug that breaks many suites: it is told once, by its shortest story, and the others are named."""

from __future__ import annotations

from dataclasses import replace

from ci.doubles.failing import OPS, VIOLATION, WORLD
from ci.mutants.mutant import Fate, MutantResult
from ci.outcome import Check, Outcome, Proof
from ci.report.closing import closing_lines
from ci.report.markdown import to_markdown
from ci.report.page import to_html
from ci.report.write import name_replays
from ci.tree import Tree
from ci.wording import selftest, why_not_valid
from properties.suite import CheckResult, Failure, Profile
from properties.verdict import Verdict, Violation


def story(check: str, length: int, violation: Violation = VIOLATION, seed: str = "0x7") -> Check:
    failure = Failure(violation, f"{seed}#{check}", WORLD, OPS[:length], ops_found=61)
    result = CheckResult(check, Verdict.INVALID, examples=1, ops=1, failures=(failure,))
    return Check(check, f"{check} suite", Verdict.INVALID, 7, (violation.sentence,), 1.0, result, (failure,))


def outcome(*checks: Check) -> Outcome:
    return Outcome(
        verdict=Verdict.INVALID,
        tree=Tree("4f2a91c" + "0" * 33, ""),
        seed=7,
        profile=Profile.QUICK,
        command="assay gate --seed 0x7",
        wall_s=1.0,
        started_at="2026-01-01T00:00:00+00:00",
        checks=checks,
        proofs=(Proof("p", 1, 1, "", True),),
    )


OTHER = replace(VIOLATION, invariant="SC-3", name="served in order", subject="request b")
ONE_BUG = outcome(story("long", 3), story("bare", 0), story("short", 2), story("long", 3, seed="0x8"), story("tail", 1, OTHER))


def test_the_shortest_story_with_operations_leads_and_identifiers_keep_their_order() -> None:
    assert [(item.lead, item.others) for item in ONE_BUG.findings] == [(2, (0, 1, 3)), (4, ())]
    assert ONE_BUG.findings[0].elsewhere == ("long suite", "bare suite")


def test_the_terminal_tells_each_identifier_once_and_who_else_found_it() -> None:
    lines = list(closing_lines(ONE_BUG, name_replays(ONE_BUG), "report"))
    told = [line for line in lines if line.startswith("INVALID   ") and "·" in line and "seed" in line]
    assert [line.split(" · ")[:2] for line in told] == [
        ["INVALID   KV-4 freed once", "short suite"],
        ["INVALID   SC-3 served in order", "tail suite"],
    ]
    assert lines.count("  also found by: long suite, bare suite · 4 stories in all") == 1


def test_why_not_valid_is_what_broke_once_for_each_identifier() -> None:
    assert why_not_valid(ONE_BUG) == [
        f"KV-4 freed once (4 stories): {VIOLATION.sentence}",
        f"SC-3 served in order: {OTHER.sentence}",
    ]


def test_the_summary_and_the_page_fold_the_other_stories_and_name_their_files() -> None:
    replays = name_replays(ONE_BUG)
    summary, page = to_markdown(ONE_BUG, replays, "report"), to_html(ONE_BUG, replays, {}, "report")
    assert (summary.count("## KV-4"), page.count("<h3>KV-4")) == (1, 1)
    assert "<summary>also found by: long suite, bare suite · 4 stories in all</summary>" in summary
    for place in (0, 3):
        assert f"`report/{replays[place]}`" in summary
        assert f'<a href="{replays[place]}">' in page


def test_mutants_that_did_not_run_are_told_once_and_counted_apart() -> None:
    fates = [MutantResult(name, "o", Fate.NOT_RUN, note="did not begin").to_json() for name in ("m1", "m2")]
    ended = replace(ONE_BUG, checks=(), mutants=tuple(fates), reasons=("interrupted by Ctrl-C",))
    assert why_not_valid(ended) == ["interrupted by Ctrl-C", "mutants m1, m2 not run: did not begin"]
    assert selftest(ended) == "mutants 0 of 2 killed, 2 not run · self-proof 1 of 1"


def test_one_suite_that_finds_it_twice_says_so() -> None:
    twice = outcome(story("long", 3), story("long", 2, seed="0x8"))
    assert "  also found by: the same suite · 2 stories in all" in closing_lines(twice, {}, "report")


def test_a_replay_is_named_by_the_seed_of_its_storm_and_not_by_what_strikes_in_it() -> None:
    struck = f"remote-deeper#0xc4445f69f64: {'stream-delays,restarts restarts@24+2:3! ' * 9}"
    failure = Failure(VIOLATION, struck, WORLD, OPS, ops_found=61)
    check = replace(story("storms", 3), failures=(failure,))
    (name,) = name_replays(outcome(check)).values()
    assert name == f"replay/{VIOLATION.invariant}-0xc4445f69f64.json"
