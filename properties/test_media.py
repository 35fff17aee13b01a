"""Which embeddings of an item a step lays over which of its tokens, and what is said of items that can not be encoded."""

from __future__ import annotations

import pytest
import torch

from engine_under_test.errors import RunnerError
from engine_under_test.execution.media import MediaEmbeddings, MediaPart, parts_of
from engine_under_test.types import Media


class CountingEncoder:
    """Row r of an item is r everywhere."""

    def __init__(self, hidden_size: int = 2) -> None:
        self.num_calls = 0
        self._hidden_size = hidden_size

    def encode(self, digest: str, length: int) -> torch.Tensor:
        self.num_calls += 1
        if digest == "broken":
            raise ValueError("no such image")
        return torch.arange(length).float()[:, None].expand(-1, self._hidden_size)


def embeddings(encoder: CountingEncoder) -> MediaEmbeddings:
    return MediaEmbeddings(encoder, 2, torch.float32, torch.device("cpu"))


@pytest.mark.parametrize(
    ("start", "num", "due"),
    [
        (0, 4, [(10 + 2, 2, 0)]),
        (4, 2, [(10, 2, 2)]),
        (5, 9, [(10, 2, 3)]),
        (7, 1, []),
        (0, 9, [(10 + 2, 5, 0), (10 + 8, 1, 0)]),
    ],
    ids=["its beginning", "its middle", "its end, and beyond", "behind it", "whole, and the beginning of the next"],
)
def test_a_step_takes_of_each_item_what_it_computes(start: int, num: int, due: list[tuple[int, int, int]]) -> None:
    media = (Media("a", 2, 5), Media("b", 8, 3))
    found = [(part.place, part.num, part.offset) for part in parts_of(media, 0, 10, start, num)]
    assert found[: len(due)] == due


def test_embeddings_stand_at_their_places_and_an_item_is_encoded_once() -> None:
    encoder = CountingEncoder()
    kept = embeddings(encoder)
    for offset in (0, 3):
        hidden = kept.lay_over(torch.full((4, 2), -1.0), [MediaPart(0, 1, 2, "a", offset, 5)])
        assert hidden[:, 0].tolist() == [-1, offset, offset + 1, -1]
    assert encoder.num_calls == 1


def test_a_row_whose_item_can_not_be_encoded_is_to_blame() -> None:
    with pytest.raises(RunnerError, match="no such image") as raised:
        embeddings(CountingEncoder()).lay_over(torch.zeros(1, 2), [MediaPart(3, 0, 1, "broken", 0, 1)])
    assert raised.value.rows == (3,)


def test_an_encoder_of_another_size_is_told_so() -> None:
    with pytest.raises(RunnerError, match="one embedding of 2 numbers for each of its 4 placeholders"):
        embeddings(CountingEncoder(3)).lay_over(torch.zeros(1, 2), [MediaPart(3, 0, 1, "a", 0, 4)])
