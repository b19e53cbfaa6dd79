"""What models are asked with besides their prompts, as configured (`PALIMPSEST_MODEL_SETTINGS`)."""

import json
from typing import Any

from service.domain.prompting.flows import Purpose
from service.settings.config import Config
from service.settings.models import CallSetting, ModelSetting, matching

#: Fields of a model's settings that are no part of a call.
_OF_THE_MODEL = {"purposes", "cache_ttl"}


class SettingsByModel:
    """The settings of every model that one process asks."""

    def __init__(self, config: Config) -> None:
        self._settings = config.model_settings

    def of(self, model: str, purpose: Purpose) -> CallSetting:
        """What calls of a purpose are asked with: the model's settings, then the purpose's."""
        return CallSetting.model_construct(**self._values(model, purpose))

    def purposes(self, model: str) -> tuple[Purpose, ...]:
        """The purposes that have settings of their own."""
        found: ModelSetting | None = matching(self._settings, model)
        return () if found is None else tuple(found.purposes)

    def output_settings(
        self, model: str, purpose: Purpose, *, headroom_tokens: int | None = None
    ) -> bytes:
        """All that the configuration says and that affects replies, for a call's key.

        Canonical; empty when nothing is set, so that keys are as they always were.
        """
        values = self._values(model, purpose)
        if headroom_tokens is not None:
            values["headroom_tokens"] = headroom_tokens
        if not values:
            return b""
        return b"settings:" + json.dumps(values, sort_keys=True, separators=(",", ":")).encode()

    def _values(self, model: str, purpose: Purpose) -> dict[str, Any]:
        """A copy of all that is set."""
        found: ModelSetting | None = matching(self._settings, model)
        if found is None:
            return {}
        values = found.model_dump(exclude_none=True, exclude=_OF_THE_MODEL)
        own = found.purposes.get(purpose)
        if own is not None:
            values = _over(values, own.model_dump(exclude_none=True))
        return values


def _over(values: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    """What a purpose sets over what its model does; extras field by field."""
    extra = {
        name: one
        for said in (values, own)
        for field in ("extra_body", "extra")
        for name, one in (said.get(field) or {}).items()
    }
    rest = {**values, **own}
    if "extra" in rest:
        rest.pop("extra_body", None)
        return {**rest, "extra": extra}
    return {**rest, "extra_body": extra} if "extra_body" in rest else rest
