"""Several deployments of one model, as they are configured."""

import json
import os
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    PlainValidator,
    SecretStr,
    TypeAdapter,
    ValidationError,
)
from pydantic_core import PydanticCustomError

from service.settings.models import checked_key, checked_url, wrong

#: Deployments of all models.
MAX_DEPLOYMENTS = 256
#: Bytes of a file that names them.
MAX_FILE_BYTES = 1024 * 1024


#: What only some providers take, with litellm's name of it.
_OPENAI = {"organization": "organization", "project": "project"}
_AZURE = {"api_version": "api_version"}
_BEDROCK = {
    "region": "aws_region_name",
    "access_key_id": "aws_access_key_id",
    "secret_access_key": "aws_secret_access_key",
    "session_token": "aws_session_token",
}
_VERTEX = {
    "project": "vertex_project",
    "location": "vertex_location",
    "credentials": "vertex_credentials",
}
_THEIRS: Mapping[str, Mapping[str, str]] = {
    "openai": _OPENAI,
    "azure": _AZURE,
    "azure_ai": _AZURE,
    "bedrock": _BEDROCK,
    "vertex_ai": _VERTEX,
}
#: All of them, in the order in which they are shown.
_FIELDS = tuple(dict.fromkeys(name for fields in _THEIRS.values() for name in fields))
#: Those that are secret: each may stand in a variable of the environment instead.
_SECRETS = ("api_key", "secret_access_key", "session_token", "credentials")
#: Providers with no address of their own, and litellm's variable for it.
_BASES: Mapping[str, str] = {"azure": "AZURE_API_BASE", "azure_ai": "AZURE_AI_API_BASE"}

_wrong = partial(wrong, "deployments")
_Variable = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
_Key = Annotated[SecretStr, AfterValidator(checked_key)]
_Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:/-]{0,127}$")]


class Deployment(BaseModel):
    """One place that serves a model, with a prefix cache of its own."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    #: Unlike any other's; in the ledger, in metrics and in logs.
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._/-]{0,63}$")]
    #: The model as memories name it: provider/name. The same model, so the same answers.
    model: Annotated[str, Field(pattern=r"^[^/\s]+/\S+$", max_length=200)]
    #: What litellm calls it there; default: `model`.
    litellm_model: Annotated[str, Field(pattern=r"^[^/\s]+/\S+$", max_length=200)] | None = None
    api_base: Annotated[str, AfterValidator(checked_url)] | None = None
    api_key: _Key | None = None
    #: The variable of the environment that holds the key, in place of `api_key`.
    api_key_env: _Variable | None = None
    #: Azure: the version of its API, as 2024-10-21; default: AZURE_API_VERSION, then litellm's.
    api_version: _Name | None = None
    #: Bedrock: the region, as eu-central-1; default: AWS_REGION_NAME or AWS_REGION.
    region: _Name | None = None
    #: Bedrock: who asks, with its secret; default: as AWS's own tools find them.
    access_key_id: _Name | None = None
    secret_access_key: _Key | None = None
    secret_access_key_env: _Variable | None = None
    session_token: _Key | None = None
    session_token_env: _Variable | None = None
    #: Vertex AI: the project of Google's. OpenAI: the project that calls are billed to.
    project: _Name | None = None
    #: Vertex AI: where the model is served, as europe-west4 or global.
    location: _Name | None = None
    #: Vertex AI: a service account as JSON, or the path of its file; default: Google's own.
    credentials: SecretStr | None = None
    credentials_env: _Variable | None = None
    #: OpenAI: the organization that calls are billed to.
    organization: _Name | None = None
    #: Tokens of prompts that it reads in a second, about; what a queue is measured by.
    tokens_per_second: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    #: Calls that one worker process lets it have under way before others are preferred.
    max_in_flight: Annotated[int, Field(ge=1)] | None = None

    @property
    def target(self) -> str:
        """Litellm's name of the model there."""
        return self.litellm_model or self.model

    def base(self) -> str | None:
        """Returns its address, from here or the environment; None: its provider's only one."""
        return self.api_base or os.environ.get(_BASES.get(self.provider, "")) or None

    def key(self) -> str | None:
        """Returns the key, from here or the environment; None when there is none."""
        return self._secret("api_key")

    def secrets(self) -> Iterator[str]:
        """Yields the values that must not be shown."""
        for name in _SECRETS:
            value = self._secret(name)
            if value is not None:
                yield value

    def without_secrets(self) -> dict[str, Any]:
        """Returns what is set, for processes without its secrets and variables."""
        # The name of who asks is taken with its secret only.
        names = {"access_key_id", *_SECRETS, *(f"{name}_env" for name in _SECRETS)}
        found = self.model_dump(exclude=names, exclude_none=True)
        return found if self.base() is None else {**found, "api_base": self.base()}

    def arguments(self) -> dict[str, str]:
        """Returns the arguments of its provider besides URL and key, by litellm's names."""
        found = ((theirs, self._value(name)) for name, theirs in self._takes().items())
        return {theirs: value for theirs, value in found if value is not None}

    def shown(self) -> str:
        """Returns what is set, without secrets."""
        parts = [f"{self.target} at {self.api_base}" if self.api_base else self.target]
        for name in _FIELDS:
            if self._is_set(name):
                said = "set" if name in _SECRETS else getattr(self, name)
                parts.append(f"{name} {said}")
        return ", ".join(parts)

    @property
    def provider(self) -> str:
        """The first part of litellm's name of the model."""
        return self.target.partition("/")[0]

    def strange_field(self) -> str | None:
        """Returns the first field that is set and that its provider does not accept."""
        takes = self._takes()
        return next((name for name in _FIELDS if self._is_set(name) and name not in takes), None)

    def _takes(self) -> Mapping[str, str]:
        return _THEIRS.get(self.provider, {})

    def _is_set(self, name: str) -> bool:
        given = (getattr(self, name), getattr(self, f"{name}_env", None))
        return any(value is not None for value in given)

    def _value(self, name: str) -> str | None:
        if name in _SECRETS:
            return self._secret(name)
        value: str | None = getattr(self, name)
        return value

    def _secret(self, name: str) -> str | None:
        value: SecretStr | None = getattr(self, name)
        if value is not None:
            return value.get_secret_value()
        variable: str | None = getattr(self, f"{name}_env")
        return None if variable is None else os.environ[variable].strip()


_ADAPTER: TypeAdapter[tuple[Deployment, ...]] = TypeAdapter(tuple[Deployment, ...])


def read_deployments(value: Any) -> tuple[Deployment, ...]:
    """Returns deployments from JSON, a file of JSON, or values. Raises PydanticCustomError."""
    if isinstance(value, dict):
        raise _wrong("is one table: begin each deployment with [[deployments]]")
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
        _check(one)
    return found


def _check(one: Deployment) -> None:
    for name in _SECRETS:
        variable = getattr(one, f"{name}_env")
        if variable is not None and getattr(one, name) is not None:
            raise _wrong(f"gives the deployment {one.name!r} both {name} and {name}_env")
        if variable is not None:
            _check_variable(one, name, variable)
    if (strange := one.strange_field()) is not None:
        takers = ", ".join(name for name, fields in _THEIRS.items() if strange in fields)
        raise _wrong(f"{one.name!r}: {one.target} takes no {strange}; it is for {takers}")
    if one.provider in _BASES and one.api_base is None:
        _check_base(one, _BASES[one.provider])
    has_secret = one.secret_access_key is not None or one.secret_access_key_env is not None
    if has_secret != (one.access_key_id is not None):
        raise _wrong(f"{one.name!r}: access_key_id and secret_access_key go together")
    if one.model.startswith("offline/"):
        raise _wrong(f"{one.name!r}: the offline model runs in the worker and has no places")
    if (said := one.arguments().get(_VERTEX["credentials"])) is not None and not _is_account(said):
        why = "are neither a service account as JSON nor the path of a file that can be read"
        raise _wrong(f"{one.name!r}: its credentials {why}")


def _check_variable(one: Deployment, name: str, variable: str) -> None:
    if variable not in os.environ:
        raise _wrong(f"the variable {variable} for {one.name!r} is not set")
    # A service account may have several lines.
    if name != "credentials":
        try:
            checked_key(SecretStr(os.environ[variable]))
        except PydanticCustomError as error:
            raise _wrong(f"the variable {variable} for {one.name!r} {error.message()}") from None


def _check_base(one: Deployment, variable: str) -> None:
    found = one.base()
    if found is None:
        raise _wrong(f"{one.name!r}: {one.target} wants an api_base, or the variable {variable}")
    try:
        checked_url(found)
    except PydanticCustomError as error:
        raise _wrong(f"the variable {variable} for {one.name!r} {error.message()}") from None


def _is_account(said: str) -> bool:
    """Returns whether these are credentials: JSON, or the path of a readable file."""
    try:
        if said.lstrip().startswith("{"):
            json.loads(said)
            return True
        return Path(said).is_file() and os.access(said, os.R_OK)
    except (OSError, ValueError, RecursionError):
        return False


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


Deployments = Annotated[tuple[Deployment, ...], PlainValidator(read_deployments)]
