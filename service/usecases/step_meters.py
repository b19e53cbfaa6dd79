"""What is counted of steps, whatever kind of memory makes them."""

from service.telemetry import meter

STEPS = meter().create_counter(
    "palimpsest.steps", description="Committed changes of memories, by kind"
)
FENCED = meter().create_counter(
    "palimpsest.steps.fenced", description="Results thrown away: another worker has it"
)
FAILED = meter().create_counter("palimpsest.steps.failed", description="Tries of steps that failed")
