"""Counts model calls, once each, when they are written to the ledger.

Attributes are model and purpose, never a tenant, a session or a memory: there may be
any number of those. Of models there is a bounded number of names.
"""

from opentelemetry.metrics import Meter

from service.domain.calls.ledger import Call
from service.llm.providers.labels import LABELS
from service.telemetry import meter
from service.telemetry.names import Attribute, Metric


class CallMeters:
    """The counters of one process."""

    def __init__(self, by: Meter | None = None) -> None:
        by = by or meter()
        self._calls = by.create_counter(
            Metric.LLM_CALLS,
            description="Model calls, by model, purpose and how their reply ended, or failure",
        )
        self._tokens = by.create_counter(
            Metric.LLM_TOKENS,
            description="Tokens in the ledger, by model, purpose and kind",
        )
        self._residuals = by.create_counter(
            Metric.LLM_RESIDUAL_TOKENS,
            description="Tokens cached otherwise than predicted, by model, purpose and class",
        )
        self._cost = by.create_counter(
            Metric.LLM_COST, unit="usd", description="Price of calls that have one"
        )

    def count(self, call: Call) -> None:
        """Counts a call that was written."""
        whose = {Attribute.MODEL: LABELS.of(call.model), Attribute.PURPOSE: call.purpose.value}
        outcome = "failure" if call.reply is None else call.end.value
        self._calls.add(1, {**whose, Attribute.OUTCOME: outcome})
        if call.reply is None:
            return
        for kind, tokens in (
            ("input", call.input_tokens),
            ("predicted_cached", call.predicted_cached_tokens),
            ("reported_cached", call.reported_cached_tokens),
            ("cache_write", call.cache_write_tokens),
            ("output", call.output_tokens),
        ):
            # Unknown is not 0.
            if tokens is not None:
                self._tokens.add(tokens, {**whose, Attribute.KIND: kind})
        reported = call.reported_cached_tokens
        if call.residual is not None and reported is not None:
            tokens = abs(call.predicted_cached_tokens - reported)
            self._residuals.add(tokens, {**whose, Attribute.CLASS: call.residual})
        if call.cost_micro_usd is not None:
            self._cost.add(call.cost_micro_usd / 1e6, whose)
