"""Checks whether the endpoints of the configured models answer, without a paid call."""

import asyncio
import urllib.error
import urllib.request
from dataclasses import replace

from service.domain.operations.doctor import Finding, bad, ok, warn
from service.settings.config import OFFLINE_MODEL, Config
from service.settings.deployments import Deployment

#: How long an endpoint may take to answer, in seconds.
ANSWER_SECONDS = 5.0


async def look_at_models(config: Config, hidden: frozenset[str] = frozenset()) -> list[Finding]:
    """Returns a finding for the model, and one for each endpoint that is configured by its URL.

    `hidden`: the names of keys that only the running processes have.
    """
    is_offline = config.model == OFFLINE_MODEL
    free = ": no network is needed, and no model is asked" if is_offline else ""
    findings = [ok("model", f"{config.model}{free}")]
    for name, base, setting, secret in (
        ("model", config.model_base_url, "model_api_key", config.model_api_key),
        ("vectors", config.embedding_base_url, "embedding_api_key", config.embedding_api_key),
    ):
        if base is not None:
            key = secret.get_secret_value() if secret else None
            has_other = key is None and setting in hidden
            findings.append(await asyncio.to_thread(_endpoint, name, base, key, has_other))
    for one in config.deployments:
        findings.append(await asyncio.to_thread(_deployment, one, hidden))
    return findings


#: Providers whose servers list their models for a key in OpenAI's header.
_LISTS = ("openai", "hosted_vllm", "deepseek", "groq", "mistral", "openrouter", "xai")


def _deployment(one: Deployment, hidden: frozenset[str]) -> Finding:
    """Returns what is set of a deployment, and whether its URL answers."""
    name = f"deployment {one.name}"
    if one.api_base is None:
        return ok(name, f"{one.shown()}: asked by `palimpsest model check {one.model}`")
    has_other = one.key() is None and name in hidden
    base = one.api_base.rstrip("/")
    if one.provider == "azure":
        version = f"?api-version={one.api_version}" if one.api_version else ""
        found = _endpoint(name, base, one.key(), has_other, "/openai/models" + version, "api-key")
    elif one.provider in _LISTS:
        found = _endpoint(name, base, one.key(), has_other)
    else:
        # Any answer will do; only a call can test the key.
        found = _endpoint(name, base, None, False, "", "")
    return replace(found, said=f"{found.said} ({one.shown()})")


def _endpoint(
    name: str,
    base: str,
    key: str | None,
    has_other: bool,
    path: str = "/models",
    header: str = "Authorization",
) -> Finding:
    """Requests the list of models, which OpenAI-compatible servers have.

    `header`: the header of the key; empty: it is called without one, and may refuse that.
    `has_other`: whether the running processes have a key that is not known here.
    """
    if not base.startswith(("http://", "https://")):
        return bad(name, f"{base} is no URL http://… or https://…", "set its base URL")
    request = urllib.request.Request(base.rstrip("/") + path)  # noqa: S310 - checked above
    if key is not None and header:
        request.add_header(header, f"Bearer {key}" if header == "Authorization" else key)
    try:
        with urllib.request.urlopen(request, timeout=ANSWER_SECONDS) as reply:  # noqa: S310
            return ok(name, f"{base} answers ({reply.status})")
    except urllib.error.HTTPError as error:
        if not header and error.code < 500:
            return ok(name, f"{base} answers ({error.code} to no question)")
        if error.code in (401, 403) and has_other:
            return ok(name, f"{base} answers, and wants the key, which only the running `up` has")
        if error.code in (401, 403):
            return bad(name, f"{base} refuses the key ({error.code})", "set the right API key")
        if error.code >= 500:
            return warn(name, f"{base} answers {error.code}", "look after the provider")
        # It answers, but does not list its models.
        return ok(name, f"{base} answers ({error.code} to a list of models)")
    except (OSError, ValueError) as error:
        cause = getattr(error, "reason", None) or error
        return bad(name, f"{base} cannot be reached: {cause}", "look after its URL and network")
