"""The reference models on histories written by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from engine_under_test.caps import Caps
from engine_under_test.types import (
    FinishReason,
    Output,
    Plan,
    PlannedStep,
    PrefixEntry,
    RefusalReason,
    Request,
    Reservation,
    SamplingParams,
)
from models.allocator_model import AllocatorModel, Key
from models.prefix_key import blake2b, block_encoding, namespace
from models.prefix_model import PrefixModel
from models.request_model import RequestModel
from models.scheduler_model import SchedulerModel
from properties.moment import ChoiceFacts

CAPS = Caps("by hand", 2, 8, 8, 4, 16, progress_bound=8, overtake_bound=2, has_choices=True, has_deadlines=True)
A, B, C = (("a", 0, 1), ("b", 0, 1), ("c", 0, 1))


def request_of(key: Key, prompt: tuple[int, ...] = (1, 2, 3, 4, 5), max_tokens: int = 3, n: int = 1) -> Request:
    return Request(key[0], prompt, SamplingParams(max_tokens=max_tokens, n=n))


class TestAllocator:
    """Holders and the order of release."""

    def test_a_block_is_released_when_its_last_holder_lets_go(self) -> None:
        model = AllocatorModel()
        model.hold(A, (1, 2))
        model.hold(B, (1, 3))
        assert model.release([A]) == [2]
        assert model.released_at(1) is None
        assert model.release([B]) == [3, 1]

    def test_the_tail_is_released_before_the_head(self) -> None:
        model = AllocatorModel()
        model.hold(A, (4, 2, 7))
        model.release([A])
        order = [model.released_at(block) for block in (7, 2, 4)]
        assert order == sorted(set(order), key=lambda at: at or 0)

    def test_two_that_end_at_once_have_no_promised_order(self) -> None:
        model = AllocatorModel()
        model.hold(A, (1,))
        model.hold(B, (2,))
        model.release([A, B])
        assert model.released_at(1) == model.released_at(2)

    def test_a_source_of_a_copy_is_held_until_its_plan_has_landed(self) -> None:
        model = AllocatorModel()
        model.hold(A, (1, 2))
        model.hold(A, (1, 3))
        assert model.is_held(2)
        assert model.landed(A) == [2]

    def test_quarantine_puts_off_the_release(self) -> None:
        model = AllocatorModel()
        for key, block in ((A, 1), (B, 2)):
            model.hold(key, (block,))
            model.release([key])
        model.let_go_now([1])
        assert (model.released_at(1) or 0) > (model.released_at(2) or 0)

    def test_an_abandon_gives_back_what_the_plan_took(self) -> None:
        model = AllocatorModel()
        model.hold(A, (1,))
        model.hold(A, (1, 2, 3))
        assert model.replace(A, (1,)) == [3, 2]
        assert model.is_held(1)


class TestPrefix:
    """Contents, and what must be found."""

    def setup_method(self) -> None:
        self.model = PrefixModel(CAPS, blake2b)
        self.facts = ChoiceFacts(request_of(A), 0, 1, [])

    def commit(self, key: Key, table: tuple[int, ...], start: int, end: int) -> None:
        self.model.committed(key, self.facts, table, start, end)

    def test_only_full_blocks_hold_content(self) -> None:
        self.model.began(A)
        self.commit(A, (1, 2, 3), 0, 3)
        assert set(self.model.content_by_block) == {1}
        self.commit(A, (1, 2, 3), 3, 5)
        assert set(self.model.hittable) == {1, 2}
        assert self.model.content_by_block[2].parent is self.model.content_by_block[1]

    def test_equal_content_is_one_object_and_either_block_may_keep_it(self) -> None:
        for key, block in ((A, 1), (B, 2)):
            self.model.began(key)
            self.commit(key, (block,), 0, 2)
        assert self.model.content_by_block[1] is self.model.content_by_block[2]
        self.model.released([2], {})
        assert set(self.model.hittable) == {1}

    def test_the_last_block_of_a_content_keeps_it_when_released(self) -> None:
        self.model.began(A)
        self.commit(A, (1,), 0, 2)
        self.model.released([1], {})
        assert set(self.model.hittable) == {1}

    def test_nothing_is_owed_behind_an_evicted_ancestor(self) -> None:
        self.model.began(A)
        self.commit(A, (1, 2), 0, 4)
        self.model.taken((1,))
        assert set(self.model.content_by_block) == {2}
        assert not self.model.hittable

    def test_a_reset_ends_what_is_owed_also_for_who_began_before_it(self) -> None:
        self.model.began(A)
        self.commit(A, (1, 2), 0, 2)
        self.model.reset()
        self.commit(A, (1, 2), 2, 4)
        assert set(self.model.content_by_block) == {1, 2}
        assert not self.model.hittable

    def test_a_fork_belongs_to_the_cache_generation_of_its_parent(self) -> None:
        self.model.began(A)
        self.model.reset()
        child = ("a", 1, 1)
        self.model.forked(child)
        self.model.began(child)
        self.commit(child, (1,), 0, 2)
        assert not self.model.hittable

    def test_an_entry_is_known_only_when_its_content_was_committed(self) -> None:
        space = namespace(CAPS.model_revision, self.facts.request)
        entry = PrefixEntry(b"k", space, None, (1, 2))
        assert self.model.translate(entry) is None
        self.model.began(A)
        self.commit(A, (1,), 0, 2)
        assert self.model.translate(entry) is self.model.content_by_block[1]
        assert self.model.translate(PrefixEntry(b"k", space, None, (1, 3))) is None

    def test_a_key_is_that_of_its_own_tokens_behind_its_parents_key(self) -> None:
        parent = PrefixEntry(b"other", b"space", None, (1, 2))
        entry = PrefixEntry(b"k", b"space", parent, (3, 4))
        assert self.model.expected_key(entry) == blake2b(block_encoding(b"other", False, (3, 4), ()))

    def test_contents_of_a_prompt_end_where_nothing_was_committed(self) -> None:
        self.model.began(A)
        self.commit(A, (1, 2), 0, 2)
        assert len(self.model.prompt_contents(self.facts.request, (1, 2, 3, 4, 5))) == 1


class TestRequests:
    """Ends and outputs."""

    def setup_method(self) -> None:
        self.model = RequestModel(CAPS)

    def accept(self, key: Key, **sampling: Any) -> None:
        request = replace(request_of(key), sampling=SamplingParams(**sampling))
        self.model.accept(request, key[2])

    def test_a_stop_token_ends_and_what_is_behind_it_does_not_count(self) -> None:
        self.accept(A, max_tokens=5, stop_token_ids=(7,))
        assert self.model.advance(A, (1, 7, 2))
        assert self.model.ended[A].emitted == [1, 7]
        assert self.model.ended[A].finish_reason is FinishReason.STOP

    def test_the_last_token_allowed_ends_by_length(self) -> None:
        self.accept(A, max_tokens=2)
        assert not self.model.advance(A, (1,))
        assert self.model.advance(A, (1,))
        assert self.model.ended[A].finish_reason is FinishReason.LENGTH

    def test_a_stop_token_before_min_tokens_does_not_end(self) -> None:
        self.accept(A, max_tokens=5, min_tokens=2, stop_token_ids=(7,))
        assert not self.model.advance(A, (7, 1))
        assert self.model.advance(A, (7,))

    def test_an_identifier_is_a_duplicate_only_while_it_lives(self) -> None:
        self.accept(A)
        assert self.model._due_refusals(request_of(A), 0.0) == [RefusalReason.DUPLICATE_ID]
        self.model.end(A, FinishReason.ABORT)
        assert self.model._due_refusals(request_of(A), 0.0) == []

    @pytest.mark.parametrize(
        ("reason", "now", "invariant"),
        [
            (FinishReason.DEADLINE, 0.0, "SC-15"),
            (FinishReason.ERROR, 0.0, "SC-12"),
            (FinishReason.LENGTH, 0.0, "SC-12"),
        ],
        ids=["a deadline that has not passed", "an error without a fault", "a length that is not reached"],
    )
    def test_an_end_without_its_cause_is_found(self, reason: FinishReason, now: float, invariant: str) -> None:
        self.accept(A)
        found = self.model.deliver((Output("a", 0, 1, 0, (), reason),), now)
        assert found is not None
        assert found.invariant == invariant

    def test_an_error_after_a_fault_is_an_end(self) -> None:
        self.accept(A)
        self.model.excused = {("a", 1)}
        assert self.model.deliver((Output("a", 0, 1, 0, (), FinishReason.ERROR),), 0.0) is None
        assert self.model.fresh_ends == [A]


def step_of(plan_id: int, *rows: tuple[Key, int, int, bool], hits: int = 0, epoch: int = 0) -> PlannedStep:
    """Rows are (choice, start, number, samples); input tokens are those of `request_of`, zeros behind the prompt."""
    requests = tuple(request_of(key, n=2) for key, _, _, _ in rows)
    tokens = tuple(t for (_, start, n, _), r in zip(rows, requests, strict=True) for t in r.prompt[start : start + n])
    plan = Plan(
        plan_id=plan_id,
        generation=0,
        requests=requests,
        choices=tuple(key[1] for key, _, _, _ in rows),
        incarnations=tuple(key[2] for key, _, _, _ in rows),
        epochs=(epoch,) * len(rows),
        starts=tuple(start for _, start, _, _ in rows),
        num_tokens=tuple(n for _, _, n, _ in rows),
        token_ids=tokens,
        num_pending=(0,) * len(rows),
        samples=tuple(samples for _, _, _, samples in rows),
        hit_blocks=(tuple(range(1, hits + 1)),) * len(rows),
    )
    return PlannedStep(plan, Reservation(plan_id, ((),) * len(rows), (), ((),) * len(rows)))


class TestScheduler:
    """Which plans were allowed."""

    def setup_method(self) -> None:
        self.requests = RequestModel(CAPS)
        self.model = SchedulerModel(self.requests, CAPS.block_size)
        for key in (A, B, C):
            self.model.accepted(self.requests.accept(request_of(key, n=2), 1), None)

    def found(self, step: PlannedStep) -> str | None:
        violation, _ = self.model.planned(step, is_counted=True)
        return None if violation is None else violation.invariant

    def test_chunks_without_gap_of_which_the_last_samples_are_allowed(self) -> None:
        assert self.found(step_of(1, (A, 0, 2, False))) is None
        assert self.found(step_of(2, (A, 2, 3, True))) is None

    @pytest.mark.parametrize(
        ("row", "hits"),
        [((A, 1, 2, False), 0), ((A, 0, 2, True), 0), ((A, 0, 5, False), 0), ((A, 0, 6, True), 0), ((A, 4, 1, True), 1)],
        ids=["a gap", "sampling too early", "not sampling at the end", "behind the end", "a start that is not behind the hits"],
    )
    def test_a_wrong_chunk_is_found(self, row: tuple[Key, int, int, bool], hits: int) -> None:
        assert self.found(step_of(1, row, hits=hits)) == "SC-10"

    def test_an_overlap_is_found(self) -> None:
        assert self.found(step_of(1, (A, 0, 4, False))) is None
        assert self.found(step_of(2, (A, 3, 2, True))) == "SC-10"

    def test_a_fork_of_an_uncovered_prompt_is_found(self) -> None:
        assert self.found(step_of(1, (("a", 1, 1), 4, 1, True))) == "SC-10"

    def test_a_fork_starts_at_the_last_position_of_a_covered_prompt(self) -> None:
        assert self.found(step_of(1, (A, 0, 4, False))) is None
        assert self.found(step_of(2, (A, 4, 1, True), (("a", 1, 1), 4, 1, True))) is None

    def test_a_row_of_an_earlier_epoch_is_found(self) -> None:
        self.requests.live[A].epoch = 1
        assert self.found(step_of(1, (A, 0, 4, False))) == "AS-4"

    def test_a_preempted_choice_begins_anew_under_a_later_epoch(self) -> None:
        assert self.found(step_of(1, (A, 0, 4, False))) is None
        self.requests.live[A].epoch = 1
        self.model.suspended(A)
        assert self.found(step_of(2, (A, 2, 2, False), hits=1, epoch=1)) is None

    def test_a_row_of_an_aborted_request_is_found(self) -> None:
        self.requests.end(A, FinishReason.ABORT)
        assert self.found(step_of(1, (A, 0, 2, False))) == "SC-6"

    def test_overtakes_are_counted_by_acceptance(self) -> None:
        self.found(step_of(1, (C, 0, 2, False)))
        assert dict(self.model.overtaken()) == {A: 1, B: 1}
        self.found(step_of(2, (A, 0, 2, False), (C, 2, 2, False)))
        assert dict(self.model.overtaken()) == {B: 1}

    def test_a_lost_plan_takes_the_scheduled_length_back(self) -> None:
        self.found(step_of(1, (A, 0, 2, False)))
        self.found(step_of(2, (A, 2, 2, False)))
        self.model.abandoned(A, [(2, False)])
        assert self.found(step_of(3, (A, 2, 2, False))) is None
        self.model.abandoned(A, [])
        assert self.found(step_of(4, (A, 0, 2, False))) is None

    def test_iterations_without_a_token_count_from_the_last_one(self) -> None:
        self.found(step_of(1, (A, 0, 4, False)))
        self.found(step_of(2, (A, 4, 1, True)))
        assert self.model.iterations_without_token()[A] == 2
        self.model.committed([(A, 5, True, (1,))])
        assert self.model.iterations_without_token()[A] == 0

    def test_plans_asked_for_past_a_deadline_are_counted(self) -> None:
        late = ("d", 0, 1)
        self.model.accepted(self.requests.accept(request_of(late), 1), 2.0)
        self.model.asked()
        self.model.advanced(2.0)
        self.model.asked()
        assert self.model.iterations_past_deadline() == {late: 1}
