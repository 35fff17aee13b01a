"""The one exception tree.

AssayError
├── ConfigError          a configuration that can not work, found before anything is built
├── OutOfBlocks          a reservation was refused; nothing was taken (KV-12)
├── RunnerError          a step failed on the device; its plan is abandoned
├── RankLost             a rank is gone, and with it all that the ranks hold; their group and the engine begin anew
├── ProtocolError        a verb called out of turn, or a result that is not what its plan asked for
└── BadInput             a file, flag or line that a person gave; ends a command with exit code 64

A message states the rule, what was found, what was expected and what to do, in one sentence or two.
"""

from __future__ import annotations


class AssayError(Exception):
    """Root of everything that this project raises on purpose."""


class ConfigError(AssayError):
    """A configuration that can not work."""


class OutOfBlocks(AssayError):
    """A reservation was refused; the state is as before it."""


class RunnerError(AssayError):
    """A step failed on the device. ``rows``: the places in the plan of those that alone are to blame, if that is known.
    ``distrusts``: what they read may be the cause; otherwise it is what they asked for."""

    def __init__(self, message: str, rows: tuple[int, ...] = (), *, distrusts: bool = False) -> None:
        super().__init__(message)
        self.rows = rows
        self.distrusts = distrusts


class RankLost(AssayError):
    """A rank died, froze or disagrees. Not a `RunnerError`: no plan can be tried again before the group has begun anew.

    ``rows``: the plans that were lost with it, with the number of rows of each.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.rows: dict[int, int] = {}


class OutOfMemory(RunnerError):
    """The device or the host has no memory for the step. Nothing of it was put on the device."""


class ProtocolError(AssayError):
    """A verb called out of turn, or a result that does not fit its plan."""


class BadInput(AssayError):
    """Something that a person handed in and that can not be used."""
