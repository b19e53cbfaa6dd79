"""Checks the API over HTTP for `palimpsest doctor`, as one of its clients calls it."""

import json
import os
import ssl
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.resources import files

import httpx

from service.cli.output import CommandError
from service.domain.operations.doctor import Finding, bad, ok, warn
from service.settings import certificates, listening
from service.settings.config import Config

#: How long the API may take to answer, in seconds.
ANSWER_SECONDS = 5.0
#: Bytes of a response that are read, at most.
MAX_BYTES = 8 * 1024 * 1024
_OPENAPI_PATH = "/openapi.json"
#: Names no session: where no key is required it is refused for that, and reads nothing.
_CALL_PATH = "/palimpsest.v1.SessionService/GetSession?message=%7B%7D"
_IS_IT = "check whether it is Palimpsest that listens there, and by http:// or by https://"


@dataclass(frozen=True, kw_only=True, slots=True)
class _Target:
    """Where the API is called, and how."""

    url: str
    #: HOST:PORT.
    address: str
    context: ssl.SSLContext | bool
    #: The name that the certificate has to have; None: that of the URL.
    server_name: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class _Response:
    """What a request got."""

    status: int
    content: bytes
    #: When the server's certificate is no longer valid; None without TLS.
    expires: datetime | None


async def check_http(url: str | None, config: Config) -> list[Finding]:
    """Returns what is the case at `url`, or else where `config` serves HTTP; empty: nowhere.

    Raises CommandError if `url` is none.
    """
    target = _configured(config) if url is None else _named(url)
    if target is None:
        return []
    if isinstance(target, Finding):
        return [target]
    async with httpx.AsyncClient(
        verify=target.context, timeout=ANSWER_SECONDS, trust_env=False
    ) as client:
        try:
            described = await _get(client, target, _OPENAPI_PATH)
            found = [judge_description(target.url, described.status, described.content)]
            if described.expires is not None:
                found.append(judge_expiry(target.url, described.expires, datetime.now(UTC)))
            if described.status == httpx.codes.OK and _is_ours(described.content):
                refused = await _get(client, target, _CALL_PATH)
                found.append(judge_keys(target.address, refused.status, config))
        except httpx.HTTPError as error:
            return [_unreached(target.url, error)]
    return found


def judge_description(url: str, status: int, content: bytes) -> Finding:
    """Judges the response to a request for the description of the API."""
    if status == httpx.codes.FORBIDDEN:
        advice = "call it by its own address, or set PALIMPSEST_AUTHENTICATION=required"
        return bad("http", f"{url} refuses requests for this host (403)", advice)
    if status >= httpx.codes.INTERNAL_SERVER_ERROR:
        advice = "check the API servers that it forwards to, and their logs"
        return bad("http", f"{url} answers {status}", advice)
    if status != httpx.codes.OK or not _is_ours(content):
        return warn("http", f"{url} answers {status}, and not as Palimpsest", _IS_IT)
    if content != files("service.rpc.http").joinpath("openapi.json").read_bytes():
        said = f"{url} serves the methods of another release than this one"
        return warn("http", said, "finish the upgrade, or run the doctor of that release")
    return ok("http", f"{url} serves, with the methods of this release")


def judge_expiry(url: str, expires: datetime, now: datetime) -> Finding:
    """Judges how long the certificate that a server shows is valid."""
    said = f"the certificate at {url} expires on {expires:%Y-%m-%d}"
    left = expires - now
    if left < certificates.EXPIRY_WARNING:
        advice = "renew it in place: servers load the new files by themselves"
        return warn("http tls", f"{said}, in {left.days} day(s)", advice)
    return ok("http tls", said)


def judge_keys(address: str, status: int, config: Config) -> Finding:
    """Judges the response to a call without a key."""
    if status == httpx.codes.UNAUTHORIZED:
        return ok("http keys", "calls without a key are refused")
    if status >= httpx.codes.INTERNAL_SERVER_ERROR:
        advice = "check the log of the API"
        return warn("http keys", f"a call without a key gets {status}", advice)
    is_local = listening.is_local(address)
    if is_local and not listening.is_authenticated(config):
        return ok("http keys", f"calls need no key: only this machine reaches {address}")
    said = f"{address} accepts calls without a key"
    if config.insecure:
        advice = "unset PALIMPSEST_INSECURE, so that no start accepts that"
        return warn("http keys", f"{said}, which PALIMPSEST_INSECURE allows", advice)
    return bad("http keys", said, "set PALIMPSEST_AUTHENTICATION=required for the API's processes")


def _is_ours(content: bytes) -> bool:
    try:
        return bool(json.loads(content)["info"]["title"] == "Palimpsest")
    except (ValueError, KeyError, TypeError, RecursionError):
        return False


def _configured(config: Config) -> _Target | Finding | None:
    """Returns where `serve` or `up` listens by `config`, trusting the configured certificate."""
    address = config.http_listen
    if address is None:
        return None
    if address.endswith(":0"):
        return ok("http", f"{address} is another port at each start: name it by --http-url")
    if config.tls_client_ca_file is not None and config.mutual_tls_listen is None:
        return ok("http", f"{address} accepts clients with a certificate only, and was not asked")
    try:
        served = certificates.read(config)
    except certificates.UnusableCertificate:
        # It has a finding of its own.
        return ok("http", f"{address} was not asked, since its certificate cannot be used")
    if served is None:
        return _Target(url=f"http://{address}", address=address, context=False)
    context = ssl.create_default_context(cadata=served.chain.decode())
    # The file may end below its root.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.check_hostname = bool(served.hosts)
    # The address may be one that the certificate does not name, such as 0.0.0.0.
    name = next(iter(served.hosts), None)
    return _Target(url=f"https://{address}", address=address, context=context, server_name=name)


def _named(url: str) -> _Target:
    """Returns a URL as clients name it, who trust what their own settings say."""
    try:
        parts = httpx.URL(url)
    except httpx.InvalidURL:
        parts = httpx.URL()
    if parts.scheme not in ("http", "https") or not parts.host or parts.userinfo or parts.query:
        raise CommandError(
            "--http-url (PALIMPSEST_HTTP_URL) has to be http://HOST:PORT or https://HOST:PORT"
        )
    port = parts.port or (80 if parts.scheme == "http" else 443)
    roots = os.environ.get("PALIMPSEST_CA_FILE") or None
    try:
        context = ssl.create_default_context(cafile=roots)
    except OSError as error:
        raise CommandError(f"PALIMPSEST_CA_FILE cannot be used: {error}") from error
    return _Target(url=url.rstrip("/"), address=f"{parts.host}:{port}", context=context)


async def _get(client: httpx.AsyncClient, target: _Target, path: str) -> _Response:
    """Returns a response. Raises httpx.HTTPError."""
    extensions = {} if target.server_name is None else {"sni_hostname": target.server_name}
    headers = {"accept-encoding": "identity"}
    async with client.stream(
        "GET", target.url + path, headers=headers, extensions=extensions
    ) as reply:
        secure = reply.extensions["network_stream"].get_extra_info("ssl_object")
        content = b""
        async for part in reply.aiter_raw():
            content += part
            if len(content) > MAX_BYTES:
                break
    expires = None
    if secure is not None:
        seconds = ssl.cert_time_to_seconds(secure.getpeercert()["notAfter"])
        expires = datetime.fromtimestamp(seconds, UTC)
    return _Response(status=reply.status_code, content=content, expires=expires)


def _unreached(url: str, error: httpx.HTTPError) -> Finding:
    """Judges a server that has sent no response."""
    if "CERTIFICATE_VERIFY_FAILED" in str(error):
        advice = "renew it, or name its root in PALIMPSEST_CA_FILE"
        return bad("http tls", f"the certificate at {url} is not trusted: {error}", advice)
    if isinstance(error, httpx.ConnectError) and "SSL" not in str(error):
        return ok("http", f"nothing listens at {url}, which is no error by itself")
    said = str(error) or type(error).__name__
    return warn("http", f"{url} gives no response: {said}", _IS_IT)
