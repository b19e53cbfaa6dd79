"""What serves a model: the provider that its name says, a deployment, or a server of one's own."""

from urllib.parse import urlsplit

from service.settings.config import Config

#: The end of the names of OpenAI's own hosts.
_OPENAI_HOST = "api.openai.com"


class Served:
    """Where the models of one configuration are served."""

    def __init__(self, config: Config) -> None:
        self._has_own = bool(config.model_base_url)
        self._deployments = {one.model: one for one in reversed(config.deployments)}

    def name(self, model: str) -> str:
        """What litellm calls it there. Deployments of a model are alike: the first says it."""
        deployment = self._deployments.get(model)
        return deployment.target if deployment else model

    def is_own(self, model: str) -> bool:
        """Whether a server of one's own serves it, by OpenAI's protocol."""
        deployment = self._deployments.get(model)
        if deployment is None:
            return self._has_own and model.startswith("openai/")
        base = urlsplit(deployment.api_base or "").hostname
        is_openais = base is None or base.endswith(_OPENAI_HOST)
        return deployment.target.startswith("openai/") and not is_openais
