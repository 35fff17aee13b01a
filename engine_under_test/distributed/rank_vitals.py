"""Who has been heard of when. Owns the judgement of silence, exactly, on any clock; never reads one."""

from __future__ import annotations

from collections.abc import Iterable


class Vitals:
    """Silence counts only while the driver listens: one that was busy elsewhere has heard nothing of anybody."""

    def __init__(self, ranks: Iterable[int], silence_s: float, now: float) -> None:
        self._silence_s = silence_s
        self._heard = dict.fromkeys(ranks, now)
        self._listened = now

    def listen(self, now: float, longest_gap_s: float) -> float:
        """The driver looks at its links now, and looked at them last ``longest_gap_s`` ago, or was away in between: for so
        many seconds."""
        away = now - self._listened - longest_gap_s
        if away > 0:
            for rank, heard in self._heard.items():
                self._heard[rank] = min(heard + away, now)
        self._listened = now
        return max(away, 0.0)

    def heard(self, rank: int, now: float) -> None:
        self._heard[rank] = now

    def has_heard(self, rank: int) -> bool:
        return rank in self._heard

    def silent(self, now: float) -> tuple[int, ...]:
        """Ranks of which nothing was heard for the whole time allowed, in order."""
        return tuple(rank for rank, heard in sorted(self._heard.items()) if now - heard >= self._silence_s)
