"""Names of models as attributes of metrics: whatever clients name, there is a bounded number."""

from service.llm.providers.model_map import entry_of
from service.settings.config import OFFLINE_MODEL, Config

#: Names that are not configured and that litellm's list knows; models beyond these, and unknown
#: ones, are counted together.
MAX_LISTED = 100
OTHER = "other"


class ModelLabels:
    """The names that one process counts models by."""

    def __init__(self) -> None:
        self._configured: frozenset[str] = frozenset()
        self._listed: set[str] = set()

    def configure(self, config: Config) -> None:
        """Counts the models that are configured by their names in any case."""
        named = (OFFLINE_MODEL, config.model, config.embedding_model)
        served = (one.model for one in config.deployments)
        self._configured = frozenset(
            (
                *(*named, *served),
                *(*config.model_prices, *config.model_settings, *config.model_profiles),
            )
        )

    def of(self, model: str) -> str:
        """The model's name, or `other`."""
        if model in self._configured or model in self._listed:
            return model
        if len(self._listed) < MAX_LISTED and entry_of(model) is not None:
            self._listed.add(model)
            return model
        return OTHER


#: Of this process.
LABELS = ModelLabels()
