"""Metrics of model calls by OpenTelemetry's conventions of generative AI."""

from opentelemetry import metrics

from service.domain.prompting.flows import Purpose
from service.llm.providers.labels import LABELS
from service.llm.providers.model_map import provider_of
from service.telemetry.names import Attribute, Metric

#: From a local model's short reply to a provider's limit of ten minutes.
SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 60, 120, 300, 600)
#: As in the conventions.
TOKENS = (1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, 262144, 1048576)
#: Providers that the conventions name otherwise than litellm does.
_PROVIDERS = {
    "azure": "azure.ai.openai",
    "azure_ai": "azure.ai.inference",
    "bedrock": "aws.bedrock",
    "gemini": "gcp.gemini",
    "mistral": "mistral_ai",
    "vertex_ai": "gcp.vertex_ai",
    "watsonx": "ibm.watsonx.ai",
    "xai": "x_ai",
}


def provider_name(model: str) -> str:
    """Returns the provider of a model as the conventions name it."""
    provider = provider_of(model)
    return _PROVIDERS.get(provider, provider)


class ModelMetrics:
    """Records each try of a call."""

    def __init__(self) -> None:
        meter = metrics.get_meter("palimpsest.llm")
        self._seconds = meter.create_histogram(
            Metric.GEN_AI_CLIENT_OPERATION_DURATION,
            unit="s",
            description="Duration of model calls",
            explicit_bucket_boundaries_advisory=SECONDS,
        )
        self._tokens = meter.create_histogram(
            Metric.GEN_AI_CLIENT_TOKEN_USAGE,
            unit="{token}",
            description="Tokens of model calls, by their type",
            explicit_bucket_boundaries_advisory=TOKENS,
        )

    def record(
        self,
        operation: str,
        model: str,
        purpose: Purpose,
        seconds: float,
        *,
        error: str | None,
        input_tokens: int | None = None,
        output_tokens: int | None = None,
    ) -> None:
        """Records a try; `error` is the kind of its failure, if any."""
        known = {
            Attribute.GEN_AI_OPERATION_NAME: operation,
            Attribute.GEN_AI_PROVIDER_NAME: provider_name(model),
            Attribute.GEN_AI_REQUEST_MODEL: LABELS.of(model),
            Attribute.PALIMPSEST_PURPOSE: purpose.value,
        }
        failed = {} if error is None else {Attribute.ERROR_TYPE: error}
        self._seconds.record(seconds, {**known, **failed})
        for kind, tokens in (("input", input_tokens), ("output", output_tokens)):
            if tokens is not None:
                self._tokens.record(tokens, {**known, Attribute.GEN_AI_TOKEN_TYPE: kind})
