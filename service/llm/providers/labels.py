"""Bounds the number of models in the attributes of metrics, as clients may name any."""

from service.llm.providers.model_map import entry_of
from service.settings.config import OFFLINE_MODEL, Config

#: How many models that only litellm's list knows keep their names; all others are `other`.
MAX_LISTED = 100
OTHER = "other"


class ModelLabels:
    """Chooses the names of models in the metrics of one process."""

    def __init__(self) -> None:
        self._configured: frozenset[str] = frozenset()
        self._listed: set[str] = set()

    def configure(self, config: Config) -> None:
        """Keeps the names of all configured models."""
        named = (OFFLINE_MODEL, config.model, config.embedding_model)
        served = (one.model for one in config.deployments)
        self._configured = frozenset(
            (
                *(*named, *served),
                *(*config.model_prices, *config.model_settings, *config.model_profiles),
            )
        )

    def of(self, model: str) -> str:
        """Returns the model's name, or `other`."""
        if model in self._configured or model in self._listed:
            return model
        if len(self._listed) < MAX_LISTED and entry_of(model) is not None:
            self._listed.add(model)
            return model
        return OTHER


#: The labels of this process.
LABELS = ModelLabels()
