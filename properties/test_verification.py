"""Verification keeps the drafts that the rule keeps, draws at its own addresses, and is the same in torch and in Triton."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
import torch

from engine_under_test.errors import ConfigError, ProtocolError
from engine_under_test.sampling.noise import PhiloxNoise
from engine_under_test.sampling.picking import RACE, WALK, Pick
from engine_under_test.sampling.sampler import gumbel_max
from engine_under_test.sampling.speculation import Ask, Proposal
from engine_under_test.sampling.verification import TORCH, TRITON, BackEnd, Law, Rows, draw, rows_of, verify
from engine_under_test.seams import Purpose
from engine_under_test.types import RowId, SamplingParams
from properties.doubles import RecordingNoise

HAS_CUDA = torch.cuda.is_available()
CUDA = pytest.param(
    "cuda",
    marks=[pytest.mark.gpu, pytest.mark.skipif(not HAS_CUDA, reason="needs a CUDA device")],
    id="compiled for CUDA",
)
POSITION = 7


class Made(NamedTuple):
    rows: Rows
    target: torch.Tensor
    proposed: torch.Tensor


def made(
    vocab_size: int, *, is_certain: bool = False, dtype: torch.dtype = torch.float64, seed: int = 3, num: int = 60
) -> Made:
    """Rows of 0 to 3 drafts from sparse laws; in a third of the rows both laws are equal."""
    chance = np.random.default_rng(seed)
    laws = torch.from_numpy(chance.dirichlet(np.full(vocab_size, 0.4), size=num * 4)).to(dtype)
    others = torch.from_numpy(chance.dirichlet(np.full(vocab_size, 0.4), size=num * 3)).to(dtype)
    of, of_others = torch.arange(num * 4).view(num, 4), torch.arange(num * 3).view(num, 3)
    others[of_others[: num // 3]] = laws[of[: num // 3, :3]]
    rows = Rows(
        np.arange(num, dtype=np.uint64),
        np.arange(num, dtype=np.uint32) % 3,
        np.full(num, POSITION, np.uint32),
        torch.from_numpy(chance.integers(0, vocab_size, (num, 3))),
        torch.from_numpy(chance.integers(0, 4, num)),
        Law(laws, of),
        None if is_certain else Law(others, of_others),
    )
    return Made(rows, laws.clone(), others.clone())


def on(device: str, rows: Rows) -> Rows:
    laws = [None if law is None else Law(law.table.to(device), law.of.to(device)) for law in (rows.target, rows.proposed)]
    assert laws[0] is not None
    return Rows(rows.seeds, rows.choices, rows.positions, rows.drafts.to(device), rows.num_drafts.to(device), laws[0], laws[1])


def by_hand(rows: Rows, row: int, pick: Pick) -> tuple[int, int]:
    """The rule for one row, one draft after the other, with the engine's noise."""
    noise = PhiloxNoise()
    seed, choice = rows.seeds[row : row + 1], rows.choices[row : row + 1]
    for place in range(int(rows.num_drafts[row])):
        at = rows.positions[row : row + 1] + np.uint32(place)
        law = rows.target.table[rows.target.of[row, place]]
        draft = int(rows.drafts[row, place])
        other = torch.zeros_like(law)
        if rows.proposed is None:
            other[draft] = 1.0
        else:
            other = rows.proposed.table[rows.proposed.of[row, place]]
        if noise.uniform(seed, choice, at, Purpose.ACCEPT, 1)[0, 0] < float(law[draft]) / max(float(other[draft]), 1e-300):
            continue
        left = (law - other).clamp(min=0)
        uniforms = noise.uniform(seed, choice, at, Purpose.RECOVER, pick.num_lanes(len(law)))
        return place, int(pick((left if left.sum() > 0 else law)[None], torch.from_numpy(uniforms))[0])
    num = int(rows.num_drafts[row])
    at = rows.positions[row : row + 1] + np.uint32(num)
    law = rows.target.table[rows.target.of[row, num]]
    uniforms = noise.uniform(seed, choice, at, Purpose.SAMPLE, pick.num_lanes(len(law)))
    return num, int(pick(law[None], torch.from_numpy(uniforms))[0])


@pytest.mark.parametrize("pick", [pytest.param(RACE, id="by a race"), pytest.param(WALK, id="along the sum")])
@pytest.mark.parametrize("is_certain", [False, True], ids=["drafts from a law", "certain drafts"])
def test_each_row_is_what_the_rule_says_draft_after_draft(pick: Pick, is_certain: bool) -> None:
    rows = made(5, is_certain=is_certain).rows
    kept, tokens = verify(rows, PhiloxNoise(), pick)
    expected = [by_hand(rows, row, pick) for row in range(len(rows.seeds))]
    assert list(zip(kept.tolist(), tokens.tolist(), strict=True)) == expected
    assert len(set(kept.tolist())) > 2


@pytest.mark.parametrize("device", [pytest.param("cpu", id="interpreted"), CUDA])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("is_certain", [False, True], ids=["drafts from a law", "certain drafts"])
@pytest.mark.parametrize("vocab_size", [1, 2, 33, 1025], ids=lambda size: f"{size} tokens")
def test_triton_comes_to_the_bits_of_torch(vocab_size: int, is_certain: bool, dtype: torch.dtype, device: str) -> None:
    rows = made(vocab_size, is_certain=is_certain, dtype=dtype, num=24).rows
    one, other = verify(rows, PhiloxNoise(), back_end=TORCH), verify(on(device, rows), PhiloxNoise(), back_end=TRITON)
    assert other.num_accepted.tolist() == one.num_accepted.tolist()
    assert other.tokens.tolist() == one.tokens.tolist()


@pytest.mark.parametrize("back_end", [pytest.param(TORCH, id="torch"), pytest.param(TRITON, id="triton")])
def test_nothing_that_is_handed_in_is_changed(back_end: BackEnd) -> None:
    for is_certain in (False, True):
        rows, target, proposed = made(6, is_certain=is_certain, num=12)
        drafts = rows.drafts.clone()
        verify(rows, PhiloxNoise(), back_end=back_end)
        assert torch.equal(rows.target.table, target)
        assert rows.proposed is None or torch.equal(rows.proposed.table, proposed)
        assert torch.equal(rows.drafts, drafts)


def test_every_draw_stands_at_an_address_of_its_own() -> None:
    rows, noise = made(4).rows, RecordingNoise(PhiloxNoise())
    kept, _tokens = verify(rows, noise)
    drawn = [(each.seed, each.position, each.purpose) for each in noise.take_addresses()]
    assert len(set(drawn)) == len(drawn)
    for row, (count, num) in enumerate(zip(kept.tolist(), rows.num_drafts.tolist(), strict=True)):
        purpose = Purpose.SAMPLE if count == num else Purpose.RECOVER
        others = [each for each in drawn if each[0] == row and each[2] != Purpose.ACCEPT]
        assert others == [(row, POSITION + count, purpose)]


def test_the_bonus_is_what_the_sampler_would_have_sampled() -> None:
    rows = made(40, num=400).rows
    kept, tokens = verify(rows, PhiloxNoise())
    bonus = torch.nonzero(kept == rows.num_drafts)[:, 0]
    uniforms = PhiloxNoise().uniform(
        rows.seeds[bonus],
        rows.choices[bonus],
        rows.positions[bonus] + kept[bonus].numpy().astype(np.uint32),
        Purpose.SAMPLE,
        40,
    )
    logits = rows.target.table[rows.target.of[bonus, kept[bonus]]].log().numpy()
    assert tokens[bonus].tolist() == gumbel_max(logits, np.ones(len(bonus)), uniforms).tolist()
    assert len(bonus) > 100


@pytest.mark.parametrize("pick", [pytest.param(RACE, id="by a race"), pytest.param(WALK, id="along the sum")])
def test_a_weight_of_nothing_is_never_picked(pick: Pick) -> None:
    weights = torch.tensor([[0.0, 0.2, 0.0, 0.3, 0.0]] * 3 + [[0.0] * 5, [torch.nan] * 5], dtype=torch.float64)
    edges = torch.tensor([2.0**-33, 0.5, 1 - 2.0**-53, 0.5, 0.5], dtype=torch.float64)[:, None].expand(-1, 5)
    found = pick(weights, edges[:, : pick.num_lanes(5)].contiguous()).tolist()
    assert set(found[:3]) <= {1, 3}
    assert found[3:] == [0, 0]


def test_a_greedy_row_keeps_the_drafts_that_are_its_own_and_corrects_the_first_that_is_not() -> None:
    own = [2, 0, 1, 3]
    target = torch.eye(4, dtype=torch.float64)[own]
    for wrong in range(4):
        drafts = tuple(token if place != wrong else (token + 1) % 4 for place, token in enumerate(own[:3]))
        ask = Ask(RowId("a", 0, 1, 0), (1, 2, 3), SamplingParams(seed=9), 3, 3)
        kept, tokens = verify(rows_of([ask], Proposal((drafts,)), target), PhiloxNoise())
        assert (kept.tolist(), tokens.tolist()) == ([wrong], [own[wrong]])


def test_rows_of_several_widths_find_their_own_laws() -> None:
    asks = [
        Ask(RowId(name, 0, 1, 0), (0,) * length, SamplingParams(seed=length), 2, 1)
        for name, length in (("a", 3), ("b", 5), ("c", 4))
    ]
    proposal = Proposal(((1, 0), (), (2,)), torch.tensor([[0.1, 0.9, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]))
    target = torch.eye(3)[[1, 0, 2, 1, 0, 2]]
    rows = rows_of(asks, proposal, target)
    assert rows.positions.tolist() == [3, 5, 4]
    kept, tokens = verify(rows, PhiloxNoise())
    assert (kept.tolist(), tokens.tolist()) == ([2, 0, 0], [2, 1, 0])


def test_drafts_come_from_the_law_at_purpose_draft() -> None:
    noise = RecordingNoise(PhiloxNoise())
    law = Law(torch.tensor([[0.0, 1.0], [1.0, 0.0]]), torch.tensor([[0], [1]]))
    found = draw(law, np.array([4, 5], np.uint64), np.zeros(2, np.uint32), np.array([8, 9], np.uint32), noise)
    assert found.tolist() == [1, 0]
    assert {(each.seed, each.position, each.purpose) for each in noise.take_addresses()} == {
        (4, 8, Purpose.DRAFT),
        (5, 9, Purpose.DRAFT),
    }


def test_what_does_not_fit_is_refused_in_one_sentence() -> None:
    ask = Ask(RowId("a", 0, 1, 0), (1,), SamplingParams(), 2, 1)
    with pytest.raises(ConfigError, match="found 1 laws"):
        rows_of([ask], Proposal(((1, 0),)), torch.eye(3)[:1])
    with pytest.raises(ProtocolError, match="vocabulary of 3"):
        rows_of([ask], Proposal(((1, 3),)), torch.eye(3))
    rows = made(4).rows
    wrong = Law(rows.target.table.to(torch.bfloat16), rows.target.of)
    with pytest.raises(ConfigError, match="float32 or float64"):
        verify(Rows(rows.seeds, rows.choices, rows.positions, rows.drafts, rows.num_drafts, wrong), PhiloxNoise())
