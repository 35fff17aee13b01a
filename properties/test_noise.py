"""Noise depends on its address alone, and is the published generator."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from engine_under_test.sampling.noise import PhiloxNoise, philox4x32
from engine_under_test.seams import Purpose
from properties.doubles import RecordingNoise
from properties.moment import NoiseAddress

# Known answers for philox4x32 with 10 rounds from tests/kat_vectors of Random123: counter, key, output; word 0 first.
KNOWN_ANSWERS = {
    "all zeros": ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    "all ones": ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    "digits of pi": ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
}
SEED = 0x0123456789ABCDEF
# docs/fingerprint.md, "Worked examples"
DOCUMENTED = [
    0.6546779457712546,
    0.090084103285335,
    0.42914022237528116,
    0.2043276933254674,
    0.1316236451966688,
    0.5346988580422476,
]


def words(text: str) -> list[int]:
    return [int(word, 16) for word in text.split()]


def draw(*addresses: tuple[int, int, int], purpose: int = Purpose.SAMPLE, lanes: int = 6) -> list[list[float]]:
    seeds, choices, positions = zip(*addresses, strict=True)
    found = PhiloxNoise().uniform(
        np.array(seeds, np.uint64), np.array(choices, np.uint32), np.array(positions, np.uint32), purpose, lanes
    )
    assert found.shape == (len(addresses), lanes)
    return found.tolist()  # type: ignore[no-any-return]  # numpy types `tolist` as Any


@pytest.mark.parametrize(("counter", "key", "output"), KNOWN_ANSWERS.values(), ids=KNOWN_ANSWERS)
def test_philox_gives_the_published_answer(counter: str, key: str, output: str) -> None:
    counters, keys = np.array([words(counter)], np.uint64).T, np.array([words(key)], np.uint64).T
    assert philox4x32(counters, keys).tolist() == [words(output)]


def test_philox_gives_all_published_answers_at_once_and_leaves_its_input_alone() -> None:
    counters = np.array([words(counter) for counter, _, _ in KNOWN_ANSWERS.values()], np.uint64).T
    keys = np.array([words(key) for _, key, _ in KNOWN_ANSWERS.values()], np.uint64).T
    before = counters.copy(), keys.copy()
    assert philox4x32(counters, keys).tolist() == [words(output) for _, _, output in KNOWN_ANSWERS.values()]
    assert (counters == before[0]).all()
    assert (keys == before[1]).all()


@pytest.mark.parametrize("lanes", [1, 3, 16, 128, 129, 1000])
@pytest.mark.parametrize("position", [0, 15, 16, 1000, 2**32 - 1])
def test_a_draw_is_the_same_whether_few_rows_are_drawn_or_many(position: int, lanes: int) -> None:
    address = SEED, 3, position
    others = [(seed, 1, seed) for seed in range(200)]
    assert draw(address, lanes=lanes) == draw(*others, address, lanes=lanes)[-1:]


def test_a_page_of_one_address_is_never_taken_for_that_of_another() -> None:
    addresses = list(itertools.product((0, 1, 2**40), (0, 1), (0, 1, 40), (Purpose.SAMPLE, Purpose.ACCEPT), (5, 6)))
    noise = PhiloxNoise()
    alone, together = [], []
    for seed, choice, position, purpose, lanes in addresses:
        columns = np.array([seed], np.uint64), np.array([choice], np.uint32), np.array([position], np.uint32)
        together.append(noise.uniform(*columns, purpose, lanes).tolist())
        alone.append(PhiloxNoise().uniform(*columns, purpose, lanes).tolist())
    assert together == alone
    assert len({tuple(row[0][:5]) for row in together}) == len(addresses) / 2


def test_an_address_is_laid_out_as_documented() -> None:
    assert draw((SEED, 2, 5)) == [DOCUMENTED]


def test_a_draw_does_not_depend_on_what_is_drawn_beside_it() -> None:
    assert draw((7, 0, 1), (SEED, 2, 5), (SEED, 2, 6), lanes=33)[1] == draw((SEED, 2, 5), lanes=33)[0]
    assert draw((SEED, 2, 5), lanes=6)[0] == draw((SEED, 2, 5), lanes=64)[0][:6]


@pytest.mark.parametrize(
    ("address", "purpose"),
    [
        ((SEED + 1, 2, 5), Purpose.SAMPLE),
        ((SEED ^ 1 << 63, 2, 5), Purpose.SAMPLE),
        ((SEED, 3, 5), Purpose.SAMPLE),
        ((SEED, 2, 6), Purpose.SAMPLE),
        ((SEED, 2, 5), Purpose.RECOVER),
    ],
    ids=["another seed", "another seed in its highest bit", "another choice", "another position", "another purpose"],
)
def test_every_part_of_the_address_matters(address: tuple[int, int, int], purpose: int) -> None:
    other = draw(address, purpose=purpose)[0]
    assert not set(other) & set(DOCUMENTED)


def test_uniforms_stay_strictly_between_zero_and_one_at_the_ends_of_the_word() -> None:
    ends = (np.array([0, 0xFFFFFFFF]) + 0.5) * 2.0**-32
    assert 0 < ends[0] < ends[1] < 1
    assert np.isfinite(-np.log(-np.log(ends))).all()


def test_recording_noise_passes_draws_on_and_remembers_their_addresses() -> None:
    noise = RecordingNoise(PhiloxNoise())
    arguments = np.array([SEED, 3], np.uint64), np.array([2, 0], np.uint32), np.array([5, 1], np.uint32)
    found = noise.uniform(*arguments, Purpose.SAMPLE, 6)
    assert found[0].tolist() == DOCUMENTED
    assert noise.take_addresses() == (NoiseAddress(SEED, 2, 5, 0), NoiseAddress(3, 0, 1, 0))
    assert noise.take_addresses() == ()
