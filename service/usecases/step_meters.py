"""What is counted of steps, whatever kind of memory makes them."""

from service.telemetry import meter
from service.telemetry.names import Metric

STEPS = meter().create_counter(Metric.STEPS, description="Committed changes of memories, by kind")
FENCED = meter().create_counter(
    Metric.STEPS_FENCED, description="Results thrown away: another worker has it"
)
FAILED = meter().create_counter(Metric.STEPS_FAILED, description="Tries of steps that failed")
