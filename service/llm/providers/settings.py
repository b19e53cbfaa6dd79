"""Reads the settings of calls (`PALIMPSEST_MODEL_SETTINGS`)."""

from typing import Any

from service.domain.prompting.flows import Purpose
from service.settings.config import Config
from service.settings.models import CallSetting, ModelSetting, matching

#: Fields of a model's settings that are no part of a call.
_OF_THE_MODEL = {"purposes", "cache_ttl"}


def setting_of(config: Config, model: str, purpose: Purpose) -> CallSetting:
    """Returns the settings of calls with a purpose: the purpose's own, else the model's."""
    return CallSetting.model_construct(**values_of(config, model, purpose))


def purposes_of(config: Config, model: str) -> tuple[Purpose, ...]:
    """Returns the purposes that have settings of their own."""
    found: ModelSetting | None = matching(config.model_settings, model)
    return () if found is None else tuple(found.purposes)


def values_of(config: Config, model: str, purpose: Purpose) -> dict[str, Any]:
    """Returns a copy of all that is set; extras of a purpose add to its model's, by field."""
    found: ModelSetting | None = matching(config.model_settings, model)
    if found is None:
        return {}
    values = found.model_dump(exclude_none=True, exclude=_OF_THE_MODEL)
    setting = found.purposes.get(purpose)
    if setting is None:
        return values
    own = setting.model_dump(exclude_none=True)
    extra = {
        name: one
        for said in (values, own)
        for field in ("extra_body", "extra")
        for name, one in (said.get(field) or {}).items()
    }
    both = {**values, **own}
    if "extra" in both:
        both.pop("extra_body", None)
        return {**both, "extra": extra}
    return {**both, "extra_body": extra} if "extra_body" in both else both
