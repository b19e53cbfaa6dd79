"""What models are asked with besides their prompts, as configured (`PALIMPSEST_MODEL_SETTINGS`)."""

import copy
import json
from typing import Any

from service.config import Config
from service.model_config import ModelSetting, matching


class Settings:
    """The settings of every model that one process asks."""

    def __init__(self, config: Config) -> None:
        self._settings = config.model_settings

    def arguments(self, model: str) -> dict[str, Any]:
        """litellm's arguments: a copy, empty when nothing is set."""
        found: ModelSetting | None = matching(self._settings, model)
        return {} if found is None else copy.deepcopy(found.model_dump(exclude_none=True))

    def output_settings(self, model: str) -> bytes:
        """All that the configuration says and that affects replies, for a call's key.

        Canonical; empty when nothing is set, so that keys are as they always were.
        """
        arguments = self.arguments(model)
        if not arguments:
            return b""
        return b"settings:" + json.dumps(arguments, sort_keys=True, separators=(",", ":")).encode()
