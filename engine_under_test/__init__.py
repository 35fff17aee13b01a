"""The engine that is verified: paged KV, prefix cache, continuous batching. Usable on its own; it knows no harness.

Here: types and seams first, then `engine.py`, the only place from which state changes. Not here: anything that checks it.
Start reading at `types.py`, then `engine.py`.

    config = EngineConfig(num_blocks=64, block_size=16, vocab_size=256)
    engine = Engine(config, FingerprintRunner(config.num_blocks, config.block_size, config.vocab_size))
    engine.submit(Request("a", prompt=(1, 2, 3), sampling=SamplingParams(max_tokens=8)))
    while engine.has_work:
        engine.step()
    for output in engine.take_outputs():
        print(output.request_id, output.token_ids, output.finish_reason)
"""

from engine_under_test.clock import SystemClock
from engine_under_test.config import EngineConfig, Order
from engine_under_test.engine import Engine
from engine_under_test.errors import AssayError, BadInput, ConfigError, OutOfBlocks, ProtocolError, RunnerError
from engine_under_test.events import Counters, Event, EventKind
from engine_under_test.execution.fingerprint import FingerprintRunner
from engine_under_test.execution.runner import Launch, Runner
from engine_under_test.types import (
    Adapter,
    Admission,
    FinishReason,
    Media,
    Output,
    Plan,
    PlannedStep,
    RefusalReason,
    Request,
    Reservation,
    SamplingParams,
    Snapshot,
    StepResult,
)

__all__ = [
    "Adapter",
    "Admission",
    "AssayError",
    "BadInput",
    "ConfigError",
    "Counters",
    "Engine",
    "EngineConfig",
    "Event",
    "EventKind",
    "FingerprintRunner",
    "FinishReason",
    "Launch",
    "Media",
    "Order",
    "OutOfBlocks",
    "Output",
    "Plan",
    "PlannedStep",
    "ProtocolError",
    "RefusalReason",
    "Request",
    "Reservation",
    "Runner",
    "RunnerError",
    "SamplingParams",
    "Snapshot",
    "StepResult",
    "SystemClock",
]
