"""Bugs of a KV store among hostile peers, and of an engine before a store that is down: corpus class 8. Data only."""

from __future__ import annotations

from ci.mutants.mutant import Mutant

_SESSION = "engine_under_test/distributed/store_session.py"
_SERVER = "engine_under_test/distributed/kv_store.py"
_FRAMES = "engine_under_test/distributed/frames.py"
_TCP = "engine_under_test/distributed/tcp.py"
_HUNTS = ("hostile-peers",)

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "any-proof-opens-the-store",
        "ours",
        "",
        _SESSION,
        "            if shelf.token and not hmac.compare_digest(due, message.mac):\n",
        "            if shelf.token and not message.mac:\n",
        "Whoever says that there is a proof is let in: the shared token is not needed.",
        _HUNTS,
    ),
    Mutant(
        "frames-believed-unchecked",
        "ours",
        "",
        _FRAMES,
        "        if checksum != _checksum(sequence, message):\n",
        "        if not checksum:\n",
        "A frame is taken for what was sent though bits of it were flipped on the way.",
        _HUNTS,
    ),
    Mutant(
        "frames-may-take-for-ever",
        "ours",
        "",
        _SERVER,
        "        elif self._frame_began_at is None:\n            self._frame_began_at = self._store.clock.now()\n",
        "",
        "Whoever was welcomed and stops in the middle of a frame holds its connection for ever.",
        _HUNTS,
    ),
    Mutant(
        "each-byte-gives-a-frame-more-time",
        "ours",
        "",
        _SERVER,
        "        elif self._frame_began_at is None:\n            self._frame_began_at = self._store.clock.now()\n",
        "        else:\n            self._frame_began_at = self._store.clock.now()\n",
        "The time of a frame begins anew with each byte of it: a byte now and then holds a connection for ever.",
        _HUNTS,
    ),
    Mutant(
        "congestion-is-never-over",
        "ours",
        "",
        _SERVER,
        "        self._stalled_at = None\n        self._transport.resume_reading()\n",
        "        self._stalled_at = None\n",
        "After the first congestion the store never reads from that engine again.",
        _HUNTS,
    ),
    Mutant(
        "a-dead-store-is-hammered",
        "ours",
        "",
        _TCP,
        "        self._retry_s = min(self._retry_s * 2, self.config.retry_most_s)\n",
        "",
        "Tries to connect never become rarer: a store that is down is hammered by all of its engines.",
        _HUNTS,
    ),
    Mutant(
        "tries-become-rarer-without-a-bound",
        "ours",
        "",
        _TCP,
        "        self._retry_s = min(self._retry_s * 2, self.config.retry_most_s)\n",
        "        self._retry_s *= 2\n",
        "The wait before the next try to connect doubles for ever: a store that is back is found hours later.",
        _HUNTS,
        over_corrects="a-dead-store-is-hammered",
    ),
)
