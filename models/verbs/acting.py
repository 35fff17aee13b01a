"""What every verb acts on: the target, its device, the models that learn of it, and the eyes that judge it. Does nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from engine_under_test.adapters.base import Target, TransactionalTarget
from models.device import Device
from models.facts import ModelFacts
from models.watch import Watch
from properties.history import History


@dataclass(frozen=True, slots=True)
class Stage:
    """One of each, for all verbs of a world."""

    target: Target
    device: Device
    facts: ModelFacts
    watch: Watch
    history: History


class Acting:
    """The base of all that has verbs. What is optional of the target is called only where its caps say so."""

    def __init__(self, stage: Stage) -> None:
        self._target = stage.target
        self._more = cast("TransactionalTarget", stage.target)
        self._caps = stage.target.caps
        self._device = stage.device
        self._facts = stage.facts
        self._watch = stage.watch
        self._history = stage.history
