"""JUnit XML: one test case for each check, self-proof and mutant, for servers that show such files.

Owns the mapping: invalid is a failure, unknown an error, a suite that did not run is skipped.
"""

from __future__ import annotations

import re
from xml.etree import ElementTree

from ci.outcome import Check, Outcome
from ci.wording import work
from properties.verdict import Verdict

_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def to_xml(outcome: Outcome) -> str:
    """The whole document."""
    suite = ElementTree.Element(
        "testsuite", name=f"assay {outcome.profile}", time=f"{outcome.wall_s:.3f}", timestamp=outcome.started_at
    )
    for check in outcome.checks:
        _case_of_check(suite, check)
    for proof in outcome.proofs:
        case = ElementTree.SubElement(suite, "testcase", classname="assay.self_proof", name=proof.id)
        if not proof.is_as_planted:
            _child(case, "error", proof.note)
    for mutant in outcome.mutants:
        case = ElementTree.SubElement(
            suite, "testcase", classname="assay.mutants", name=mutant["id"], time=str(mutant["wall_s"])
        )
        if mutant["verdict"] != "killed":
            _child(case, "error", f"{mutant['verdict']}: {mutant['note']}")
    for entry in outcome.not_run:
        case = ElementTree.SubElement(suite, "testcase", classname="assay.checks", name=entry.suite)
        _child(case, "skipped", entry.why)
    for reason in outcome.reasons:
        case = ElementTree.SubElement(suite, "testcase", classname="assay.run", name="the run as a whole")
        _child(case, "error", reason)
    for tag, name in (("failure", "failures"), ("error", "errors"), ("skipped", "skipped")):
        suite.set(name, str(len(suite.findall(f"testcase/{tag}"))))
    suite.set("tests", str(len(suite)))
    root = ElementTree.Element("testsuites")
    root.append(suite)
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


def _case_of_check(suite: ElementTree.Element, check: Check) -> None:
    case = ElementTree.SubElement(suite, "testcase", classname="assay.checks", name=check.id, time=f"{check.wall_s:.3f}")
    for failure in check.failures:
        violation = failure.violation
        text = "\n".join((violation.sentence, *violation.facts, f"seed {failure.seed}, {len(failure.ops)} operations"))
        _child(case, "failure", f"{violation.invariant} {violation.name}: {violation.sentence}", text)
    if check.verdict is Verdict.INVALID and not check.failures:
        _child(case, "failure", "; ".join(check.reasons) or "the suite says invalid")
    if check.verdict is Verdict.UNKNOWN:
        _child(case, "error", check.reasons[0].splitlines()[0] if check.reasons else "unknown", "\n".join(check.reasons))
    if check.result:
        output = ElementTree.SubElement(case, "system-out")
        output.text = _NOT_XML.sub("?", work(check.result))


def _child(case: ElementTree.Element, tag: str, message: str, text: str = "") -> None:
    child = ElementTree.SubElement(case, tag, message=_NOT_XML.sub("?", message))
    child.text = _NOT_XML.sub("?", text) or None
