"""Counts steps, of memories of all kinds."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from service.llm.providers.failures import ModelFailure
from service.telemetry import meter
from service.telemetry.names import Attribute, MessagingOperation, Metric

STEPS = meter().create_counter(Metric.STEPS, description="Committed changes of memories, by kind")
FENCED = meter().create_counter(
    Metric.STEPS_FENCED, description="Results thrown away: another worker has it"
)
FAILED = meter().create_counter(Metric.STEPS_FAILED, description="Tries of steps that failed")
_SECONDS = meter().create_histogram(
    Metric.MESSAGING_PROCESS_DURATION,
    unit="s",
    description="Duration of steps, model calls among it",
    explicit_bucket_boundaries_advisory=(
        *(0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5),
        *(10, 20, 40, 60, 120, 300, 600),
    ),
)


@contextmanager
def timed(kind: str) -> Iterator[None]:
    """Records how long a step of a memory took, and what it failed of, or was ended by."""
    known = {
        Attribute.MESSAGING_SYSTEM: "palimpsest",
        Attribute.MESSAGING_OPERATION_NAME: MessagingOperation.STEP,
        Attribute.MESSAGING_DESTINATION_NAME: kind,
    }
    start = time.perf_counter()
    try:
        yield
    except BaseException as error:
        known[Attribute.ERROR_TYPE] = (
            error.fault.value if isinstance(error, ModelFailure) else type(error).__name__
        )
        raise
    finally:
        _SECONDS.record(time.perf_counter() - start, known)
