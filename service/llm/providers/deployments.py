"""Calls to one deployment out of several, through litellm's router.

litellm's router knows how each deployment is reached; which one is asked is decided
before (`service.llm.gateway.routing`). Its own choice, retries, fallbacks and cooldowns are off.
"""

from collections.abc import Sequence
from contextvars import ContextVar
from typing import Any

from service.llm.providers.library import litellm_library
from service.settings.deployments import Deployment

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
        model_list=[
            {
                "model_name": one.model,
                "litellm_params": parameters_of(one),
                "model_info": {"id": one.name},
            }
            for one in deployments
        ],
        num_retries=0,
        max_fallbacks=0,
        disable_cooldowns=True,
    )
    litellm.logging_callback_manager.add_litellm_callback(KeepChosen())
    return router


#: Providers that sign what they are asked, with no key in it.
_SIGNED = ("bedrock", "vertex_ai")


def parameters_of(one: Deployment) -> dict[str, Any]:
    """litellm's arguments for a deployment: its model, and how it is reached."""
    parameters: dict[str, Any] = {"model": one.target, **one.arguments()}
    if one.provider == "openai" and (project := parameters.pop("project", None)) is not None:
        parameters["extra_headers"] = {"OpenAI-Project": project}
    key = one.key()
    if one.api_base is not None:
        parameters["aws_bedrock_runtime_endpoint" if one.provider == "bedrock" else "api_base"] = (
            one.api_base
        )
        # Servers of one's own often want no key, the protocol always does.
        key = key or (None if one.provider in _SIGNED else "none")
    if key is not None:
        parameters["api_key"] = key
    return parameters
