"""Calls to one deployment out of several, through litellm's router.

litellm's router knows how each deployment is reached; which one is asked is decided
before (`service.llm.routing`). Its own choice, retries, fallbacks and cooldowns are off.
"""

from collections.abc import Sequence
from contextvars import ContextVar
from typing import Any

from service.deployment_config import Deployment
from service.llm.library import litellm_library

#: The deployment that the call of this task is for.
_chosen: ContextVar[str] = ContextVar("palimpsest_deployment")
#: What the router gets from the deployment, and must not get from the call.
_OF_THE_DEPLOYMENT = frozenset({"model", "api_base", "api_key"})


class DeploymentCalls:
    """Makes calls to the deployments that are configured."""

    def __init__(self, deployments: Sequence[Deployment]) -> None:
        self._deployments = {one.name: one for one in deployments}
        self._router: Any = None

    async def complete(self, name: str, arguments: dict[str, Any]) -> Any:
        """litellm's response to a call with these arguments. Raises litellm's errors."""
        if self._router is None:
            self._router = _router(litellm_library(), list(self._deployments.values()))
        rest = {key: value for key, value in arguments.items() if key not in _OF_THE_DEPLOYMENT}
        token = _chosen.set(name)
        try:
            return await self._router.acompletion(model=self._deployments[name].model, **rest)
        finally:
            _chosen.reset(token)


def _router(litellm: Any, deployments: Sequence[Deployment]) -> Any:
    from litellm.integrations.custom_logger import CustomLogger

    class KeepChosen(CustomLogger):  # type: ignore[misc]
        """Leaves the router no choice."""

        async def async_filter_deployments(
            self, model: str, healthy_deployments: list[Any], *args: Any, **kwargs: Any
        ) -> list[Any]:
            name = _chosen.get(None)
            return [one for one in healthy_deployments if one["model_info"]["id"] == name]

    router = litellm.Router(
        model_list=[_entry(one) for one in deployments],
        num_retries=0,
        max_fallbacks=0,
        disable_cooldowns=True,
    )
    litellm.logging_callback_manager.add_litellm_callback(KeepChosen())
    return router


def _entry(one: Deployment) -> dict[str, Any]:
    parameters = {"model": one.target}
    if one.api_base is not None:
        parameters["api_base"] = one.api_base
        # Servers of one's own often want no key, the protocol always does.
        parameters["api_key"] = one.key() or "none"
    elif (key := one.key()) is not None:
        parameters["api_key"] = key
    return {
        "model_name": one.model,
        "litellm_params": parameters,
        "model_info": {"id": one.name},
    }
