"""A service of a command's own, for as long as the command runs."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from pydantic import SecretStr

from service.cli.output import CommandError, say
from service.settings.config import Config


@contextlib.contextmanager
def own_service(
    config: Config,
    *,
    model: str,
    base_url: str,
    embedding_model: str = "",
    data_dir: Path | None = None,
) -> Iterator[tuple[Config, str]]:
    """Runs a service on this machine; yields the configuration of its clients, and its address.

    Without `data_dir` its data is deleted when it stops. An empty `model`, `base_url` or
    `embedding_model` means the configured one. Raises CommandError when it cannot start.
    """
    from service.local.processes import ServerError
    from service.local.stack import Stack, TemporaryStack

    said = {
        "PALIMPSEST_MODEL": model,
        "PALIMPSEST_MODEL_BASE_URL": base_url,
        "PALIMPSEST_EMBEDDING_MODEL": embedding_model,
    }
    changes = {name: value for name, value in said.items() if value}
    try:
        stack = (
            TemporaryStack(config, on_event=say, settings=changes)
            if data_dir is None
            else Stack(data_dir, config, listen="127.0.0.1:0", on_event=say, settings=changes)
        )
        with stack:
            own = config.model_copy(
                update={
                    "database_url": SecretStr(stack.database_url),
                    "redis_url": SecretStr(stack.redis_url),
                }
            )
            yield own, stack.address
    except ServerError as error:
        raise CommandError(str(error)) from error
