"""Several deployments of one model, as they are configured."""

import json
import os
from pathlib import Path
from typing import Annotated, Any

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PlainValidator,
    SecretStr,
    TypeAdapter,
    ValidationError,
)
from pydantic_core import PydanticCustomError
from pydantic_settings import NoDecode

#: Deployments of all models.
MAX_DEPLOYMENTS = 256
#: Bytes of a file that names them.
MAX_FILE_BYTES = 1024 * 1024


class Deployment(BaseModel):
    """One place that serves a model, with a prefix cache of its own."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    #: Unlike any other's; in the ledger, in metrics and in logs.
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._/-]{0,63}$")]
    #: The model as memories name it: provider/name. The same model, so the same answers.
    model: Annotated[str, Field(pattern=r"^[^/\s]+/\S+$", max_length=200)]
    #: What litellm calls it there; default: `model`.
    litellm_model: Annotated[str, Field(pattern=r"^[^/\s]+/\S+$", max_length=200)] | None = None
    api_base: Annotated[str, Field(pattern=r"^https?://\S+$")] | None = None
    api_key: SecretStr | None = None
    #: The variable of the environment that holds the key, in place of `api_key`.
    api_key_env: Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")] | None = None
    #: Tokens of prompts that it reads in a second, about; what a queue is measured by.
    tokens_per_second: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    #: Calls that one worker process lets it have under way before others are preferred.
    max_in_flight: Annotated[int, Field(ge=1)] | None = None

    @property
    def target(self) -> str:
        """What litellm calls the model there."""
        return self.litellm_model or self.model

    def key(self) -> str | None:
        """The key, from here or the environment; None when there is none."""
        if self.api_key is not None:
            return self.api_key.get_secret_value()
        return None if self.api_key_env is None else os.environ[self.api_key_env]


_ADAPTER: TypeAdapter[tuple[Deployment, ...]] = TypeAdapter(tuple[Deployment, ...])


def read_deployments(value: Any) -> tuple[Deployment, ...]:
    """Deployments from JSON, from a file of JSON, or as values; one sentence if it cannot be."""
    said = _json(value) if isinstance(value, str) else value
    if not isinstance(said, list | tuple):
        raise _wrong("is neither a JSON list of deployments nor a file with one")
    if len(said) > MAX_DEPLOYMENTS:
        raise _wrong(f"has {len(said)} deployments; at most {MAX_DEPLOYMENTS} are taken")
    try:
        found = _ADAPTER.validate_python(said)
    except ValidationError as error:
        first = error.errors(include_input=False)[0]
        number, *fields = (str(part) for part in first["loc"])
        # Counted from 1; what was given is not said: it may be a key.
        at = ".".join((f"deployment {int(number) + 1}", *fields))
        raise _wrong(f"{at}: {first['msg']}") from None
    return _checked(found)


def _checked(found: tuple[Deployment, ...]) -> tuple[Deployment, ...]:
    names = [one.name for one in found]
    for one in found:
        if names.count(one.name) > 1:
            raise _wrong(f"names the deployment {one.name!r} twice")
        if one.api_key is not None and one.api_key_env is not None:
            raise _wrong(f"gives the deployment {one.name!r} both api_key and api_key_env")
        if one.api_key_env is not None and one.api_key_env not in os.environ:
            raise _wrong(f"the variable {one.api_key_env} for {one.name!r} is not set")
        if one.model.startswith("offline/"):
            raise _wrong(f"{one.name!r}: the offline model runs in the worker and has no places")
    return found


def _json(text: str) -> Any:
    if not text.strip():
        return []
    try:
        if not text.lstrip().startswith(("[", "{")):
            with Path(text).open("rb") as file:
                raw = file.read(MAX_FILE_BYTES + 1)
            if len(raw) > MAX_FILE_BYTES:
                raise _wrong(f"the file has more than {MAX_FILE_BYTES} bytes")
            text = raw.decode()
        return json.loads(text)
    except OSError as error:
        raise _wrong(f"the file cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise _wrong("is neither a JSON list of deployments nor a file with one") from None


def _wrong(said: str) -> PydanticCustomError:
    # As a value: what is said may hold the braces of a template.
    return PydanticCustomError("deployments", "{said}", {"said": said})


Deployments = Annotated[tuple[Deployment, ...], NoDecode, PlainValidator(read_deployments)]
