"""Runs one replay file alone and says whether it still fails.

Owns the comparison with what the file promised, and the text of the timeline. Never changes the file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ci.codec import violation_to_json
from ci.replay_file import ReplayFile
from ci.timeline import Scene, block_histories, tell
from engine_under_test.errors import BadInput, ConfigError
from properties.checkers import run_checkers
from properties.history import History
from properties.verdict import Verdict, Violation

_TITLE, _DETAIL = 18, 46
_JUDGED_ELSEWHERE = frozenset({"TR-1", "DET"})  # the bound of a trace; the comparison of two runs
_LANGUAGE_MODEL = "transformer"  # the target of a world in which a language model runs (`differential.setting`)
_STREAMED_TEXT = "text"  # the target of a world of readers (`differential.text_world`)
_TRANSFERS = "transfers"
_ADAPTERS = "adapters"  # of a world of language models with adapters (`differential.adapted_world`)


@dataclass(frozen=True, slots=True)
class Replayed:
    """What a replay showed. ``violation`` is what broke now, which need not be what broke then."""

    file: ReplayFile
    header: str
    scenes: tuple[Scene, ...]
    violation: Violation | None
    silence: str = ""  # why what the file says broke was not judged
    num_left: int = 0  # of the file's operations, how many at its end were not run
    num_of_file: int | None = None  # the file's operations, where they do not stand in its ``ops``

    @property
    def num_noops(self) -> int:
        return sum(scene.is_noop for scene in self.scenes)

    @property
    def num_run(self) -> int:
        return (len(self.file.ops) if self.num_of_file is None else self.num_of_file) - self.num_left

    @property
    def doubt(self) -> str:
        """Why nothing follows from a replay in which nothing broke, else nothing."""
        if self.num_run and 2 * self.num_noops > self.num_run:
            return (
                f"{self.num_noops} of {self.num_run} operations no longer apply: "
                "this replay proves nothing about the present engine"
            )
        if not self.scenes or not self.num_run:
            return "the file holds no operation: this replay proves nothing about the present engine"
        if self.file.violation.invariant in _JUDGED_ELSEWHERE and not is_of_a_language_model(self.file):
            return f"{self.file.violation.invariant} is judged over its whole suite, not in a replay: run assay gate again"
        return self.silence

    @property
    def verdict(self) -> Verdict:
        if self.violation:
            return Verdict.INVALID
        return Verdict.UNKNOWN if self.doubt else Verdict.VALID

    @property
    def closing(self) -> str:
        """What follows, in one sentence."""
        then = f"{self.file.violation.invariant} {self.file.violation.name}"
        if self.violation is None and self.doubt:
            return self.doubt
        if self.violation is None:
            return (
                f"nothing broke in the first {self.num_run} operations"
                if self.num_left
                else f"no longer fails: {then} holds in every operation"
            )
        if self.violation.invariant != self.file.violation.invariant:
            return (
                f"still fails, but otherwise: the file says {then}, now {self.violation.invariant} {self.violation.name} breaks"
            )
        return f"still fails: {then}"


def is_of_a_language_model(file: ReplayFile) -> bool:
    """Its operations add requests; a setting says how they are run, and oracles what must come of it."""
    return file.world.get("target") == _LANGUAGE_MODEL


def replay(file: ReplayFile, until: int | None = None) -> Replayed:
    """Builds the world again and applies the operations, at most the first `until`."""
    if is_of_a_language_model(file):
        from ci.float_replay import replay_floats

        return replay_floats(file, until)
    if file.world.get("target") == _STREAMED_TEXT:
        from ci.text_replay import replay_texts

        return replay_texts(file, until)
    if file.world.get("target") == _TRANSFERS:
        from ci.transfer_replay import replay_transfers

        return replay_transfers(file, until)
    if file.world.get("target") == _ADAPTERS:
        from ci.adapter_replay import replay_adapters

        return replay_adapters(file, until)
    from models.build import world_from

    try:
        world = world_from(file.world)
    except (ConfigError, KeyError, TypeError, ValueError) as error:
        raise BadInput(f"the replay's world can not be built any more: {error}; check out the commit that wrote it") from error
    caps = world.target.caps
    header = (
        f"{len(file.ops)} operations on pool {caps.num_blocks} × {caps.block_size}, "
        f"budget {caps.max_tokens_per_step}, depth {caps.max_plans_in_flight - 1} ({caps.name})"
    )
    scenes = tell(world, file.ops if until is None else file.ops[:until])
    num_left = len(file.ops) - len(scenes)
    if world.violation is not None:
        return Replayed(file, header, scenes, world.violation, num_left=num_left)
    broken, silence = _judge_history(file.violation.invariant, world.history, world.evaluations)
    if broken is not None and scenes:
        scenes = (*scenes[:-1], replace(scenes[-1], violation=broken))
    return Replayed(file, header, scenes, broken, silence, num_left)


def _judge_history(invariant: str, history: History, evaluations: Mapping[str, int]) -> tuple[Violation | None, str]:
    """What holds of whole histories, behind the last operation: the first sentence that is broken (that of the file before
    others), or why nothing follows about the sentence of the file."""
    verdicts = sorted(run_checkers(history), key=lambda verdict: verdict.identifier != invariant)
    if broken := next((verdict.violation for verdict in verdicts if verdict.violation is not None), None):
        return broken, ""
    if crashed := next((verdict for verdict in verdicts if "crashed" in verdict.note), None):
        return None, f"{crashed.identifier}: {crashed.note}; this replay proves nothing about the present engine"
    judged = evaluations.get(invariant, 0) + sum(each.evidence for each in verdicts if each.identifier == invariant)
    if invariant not in (*_JUDGED_ELSEWHERE, "CRASH") and not judged:
        return None, f"{invariant} was not judged: the operations lead to nothing that it is about; run assay gate again"
    return None, ""


def lines(replayed: Replayed, *, is_verbose: bool = False) -> Iterator[str]:
    """The timeline that a person follows."""
    yield replayed.header
    for scene in replayed.scenes:
        yield from _scene_lines(scene, is_verbose)
    yield from block_histories(replayed.scenes, replayed.violation)
    yield ""
    if violation := replayed.violation:
        yield f"{violation.invariant} {violation.name}"
        yield f"  {violation.subject}"
        yield f"    found     {violation.found}"
        yield f"    expected  {violation.expected}"
        yield from (f"    {fact}" for fact in violation.facts)
        yield ""
    yield replayed.closing


def to_json(replayed: Replayed) -> dict[str, Any]:
    return {
        "schema": 1,
        "verdict": replayed.verdict.value,
        "closing": replayed.closing,
        "header": replayed.header,
        "seed": replayed.file.seed,
        "check": replayed.file.check,
        "expected": violation_to_json(replayed.file.violation),
        "violation": violation_to_json(replayed.violation) if replayed.violation else None,
        "timeline": [scene.to_json() for scene in replayed.scenes],
        "blocks": list(block_histories(replayed.scenes, replayed.violation)),
    }


def _scene_lines(scene: Scene, is_verbose: bool) -> Iterator[str]:
    detail = "(does not apply here)" if scene.is_noop else scene.detail
    told = list(scene.changes)
    if scene.violation:
        told.append(f"✗ {scene.violation.invariant} {scene.violation.sentence}")
    head = f"{scene.number:>3}  {scene.title:<{_TITLE}}{detail}"
    if told and len(head) < 5 + _TITLE + _DETAIL:
        head = f"{head:<{5 + _TITLE + _DETAIL}}{told.pop(0)}"
    yield head.rstrip()
    yield from (f"{'':{5 + _TITLE + _DETAIL}}{change}" for change in told)
    if is_verbose:
        yield from (f"{'':9}| {line}" for line in scene.state)
