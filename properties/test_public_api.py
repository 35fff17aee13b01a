"""What the engine offers to the world is a promise: a name that comes or goes is a decision, not an accident."""

import engine_under_test


def test_the_public_names_are_these() -> None:
    assert sorted(engine_under_test.__all__) == [
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


def test_every_public_name_exists_and_says_what_it_is() -> None:
    for name in engine_under_test.__all__:
        assert (getattr(engine_under_test, name).__doc__ or "").strip(), f"{name} has no docstring"
