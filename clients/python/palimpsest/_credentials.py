"""What a client proves itself with: a token, a certificate; and whom it trusts."""

import contextlib
import ipaddress
import os
import ssl
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypedDict

import grpc

from palimpsest._errors import Unauthenticated

#: The text of a token, the path of a file with it, or a function that returns it.
Token = str | Path | Callable[[], str]

#: The variables of what is not given.
TOKEN_VARIABLE = "PALIMPSEST_TOKEN"
TOKEN_FILE_VARIABLE = "PALIMPSEST_TOKEN_FILE"
CA_FILE_VARIABLE = "PALIMPSEST_CA_FILE"
CERTIFICATE_FILE_VARIABLE = "PALIMPSEST_CERTIFICATE_FILE"
KEY_FILE_VARIABLE = "PALIMPSEST_KEY_FILE"
PLAIN_TOKEN_VARIABLE = "PALIMPSEST_PLAIN_TOKEN"
#: Characters of a token, which the service reads no more of.
MAX_TOKEN_CHARACTERS = 8192
#: Bytes of a file of certificates.
MAX_FILE_BYTES = 1024 * 1024


class AccessOptions(TypedDict, total=False):
    """How a client proves who it is; see `palimpsest.connect`."""

    credentials: grpc.ChannelCredentials | None
    token: Token | None
    ca_file: str | os.PathLike[str] | None
    certificate_file: str | os.PathLike[str] | None
    key_file: str | os.PathLike[str] | None
    plain_token: bool


class UnusableToken(ValueError):
    """A token cannot be sent; the message has nothing of it."""


class Access:
    """The credentials of a connection. Nothing shows its token."""

    def __init__(self, address: str, *, secure: bool, options: AccessOptions) -> None:
        """`address` in gRPC's form; `secure`: whether it is reached by TLS. Raises ValueError."""
        self._token = _token(options.get("token"))
        self.channel = options.get("credentials")
        if secure and self.channel is None:
            self.channel = _tls(options)
        elif any(options.get(name) for name in ("ca_file", "certificate_file", "key_file")):
            why = "there are credentials already" if self.channel else f"{address} is without TLS"
            raise ValueError(f"certificate files are not used, since {why}: use grpcs://HOST:PORT")
        is_plain = self._token is not None and self.channel is None
        allowed = options.get("plain_token") or _is_set(PLAIN_TOKEN_VARIABLE)
        if is_plain and not allowed and not is_local(address):
            raise ValueError(
                f"the token is not sent to {address} without TLS: connect to grpcs://HOST:PORT, or"
                " allow it with plain_token=True (PALIMPSEST_PLAIN_TOKEN=true)"
            )
        #: A proxy is another machine.
        self.options: Sequence[tuple[str, Any]] = (
            (("grpc.enable_http_proxy", 0),) if is_plain and not allowed else ()
        )

    def headers(self) -> Sequence[tuple[str, str]]:
        """Returns the headers of one call. Raises Unauthenticated."""
        if self._token is None:
            return ()
        try:
            token = self._token()
        except Exception as error:
            # The program's function may raise anything, and its words may hold anything.
            said = str(error) if isinstance(error, UnusableToken) else type(error).__name__
            raise Unauthenticated(f"there is no token for this call: {said}") from error
        return (("authorization", f"Bearer {token}"),)


def is_local(address: str) -> bool:
    """Returns whether only this machine is reached at an address in gRPC's form."""
    if address.startswith(("unix:", "unix-abstract:")):
        return True
    host = address.rpartition(":")[0].removeprefix("[").removesuffix("]")
    if host == "localhost":
        return True
    try:
        found = ipaddress.ip_address(host)
    except ValueError:
        return False
    return (getattr(found, "ipv4_mapped", None) or found).is_loopback


def _is_set(variable: str) -> bool:
    return os.environ.get(variable, "").lower() in ("1", "true", "yes", "on")


def _token(given: Token | None) -> Callable[[], str] | None:
    """Returns what returns the token of each call; None without one."""
    if given is None:
        text, path = os.environ.get(TOKEN_VARIABLE), os.environ.get(TOKEN_FILE_VARIABLE)
        if text and path:
            raise ValueError(
                f"{TOKEN_VARIABLE} and {TOKEN_FILE_VARIABLE} are both set: set one of them"
            )
        given = text or (Path(path) if path else None)
    if given is None:
        return None
    if isinstance(given, str):
        text = checked(given)
        return lambda: text
    if isinstance(given, os.PathLike):
        return _TokenFile(given).read
    return lambda: checked(given())


def checked(token: str) -> str:
    """Returns a token without blanks around it. Raises UnusableToken."""
    if not isinstance(token, str):
        raise UnusableToken(f"a token is a str, not {type(token).__name__}")
    token = token.strip()
    if not token:
        raise UnusableToken("the token is empty: leave it out where the service needs none")
    if len(token) > MAX_TOKEN_CHARACTERS:
        raise UnusableToken(f"the token has more than {MAX_TOKEN_CHARACTERS} characters")
    if not token.isascii() or not token.isprintable() or " " in token:
        raise UnusableToken("the token has characters that no token has: give it as it was issued")
    return token


class _TokenFile:
    """A file with a token, which is read again when it has changed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp: tuple[int, ...] = ()
        self._token = ""
        self.read()

    def read(self) -> str:
        """Returns the token. Raises UnusableToken."""
        try:
            found = os.stat(self._path)
            stamp = (found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
            if stamp != self._stamp:
                with open(self._path, "rb") as file:
                    content = file.read(MAX_TOKEN_CHARACTERS + 100)
                self._token = checked(content.decode("ascii", "replace"))
                self._stamp = stamp
        except OSError as error:
            raise UnusableToken(_unreadable(self._path, "the token", error)) from None
        return self._token


def _tls(options: AccessOptions) -> grpc.ChannelCredentials:
    """Returns the credentials of TLS. Raises ValueError."""
    ca_path = options.get("ca_file") or os.environ.get(CA_FILE_VARIABLE)
    certificate_path = options.get("certificate_file") or os.environ.get(CERTIFICATE_FILE_VARIABLE)
    key_path = options.get("key_file") or os.environ.get(KEY_FILE_VARIABLE)
    ca = _file(ca_path, CA_FILE_VARIABLE)
    certificate = _file(certificate_path, CERTIFICATE_FILE_VARIABLE)
    key = _file(key_path, KEY_FILE_VARIABLE)
    if (certificate is None) != (key is None):
        missing = (
            f"key_file ({KEY_FILE_VARIABLE})"
            if key is None
            else f"certificate_file ({CERTIFICATE_FILE_VARIABLE})"
        )
        raise ValueError(f"a client's certificate needs its key, and {missing} is missing: name it")
    if ca_path:
        _check_roots(ca_path)
    if certificate_path and key_path:
        _check_pair(certificate_path, key_path)
    return grpc.ssl_channel_credentials(ca, key, certificate)


def _context() -> ssl.SSLContext:
    """Returns what reads files of PEM. gRPC names no file, and reports a lost connection."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    # How strong a key must be is for the service to say.
    context.set_ciphers("ALL:@SECLEVEL=0")
    return context


def _check_roots(path: str | os.PathLike[str]) -> None:
    context = _context()
    with contextlib.suppress(ssl.SSLError):
        context.load_verify_locations(path)
    if not context.cert_store_stats()["x509"]:
        raise ValueError(
            f"{os.fspath(path)} ({CA_FILE_VARIABLE}) holds no certificate that can be read: name a"
            " PEM file of the roots to trust"
        )


def _check_pair(certificate: str | os.PathLike[str], key: str | os.PathLike[str]) -> None:
    try:
        # Without a password the library would ask for it at the terminal.
        _context().load_cert_chain(certificate, key, password="")
    except ssl.SSLError:
        raise ValueError(
            f"{os.fspath(certificate)} ({CERTIFICATE_FILE_VARIABLE}) and {os.fspath(key)}"
            f" ({KEY_FILE_VARIABLE}) are no certificate and its key: write the two that belong"
            " together, as PEM, the key without a passphrase"
        ) from None


def _file(path: str | os.PathLike[str] | None, variable: str) -> bytes | None:
    if not path:
        return None
    try:
        with open(path, "rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ValueError(_unreadable(path, variable, error)) from None
    if b"-----BEGIN " not in content or len(content) > MAX_FILE_BYTES:
        raise ValueError(f"{os.fspath(path)} ({variable}) is no PEM file of at most 1 MiB")
    return content


def _unreadable(path: str | os.PathLike[str], what: str, error: OSError) -> str:
    cause = (error.strerror or str(error)).lower()
    return f"cannot read {os.fspath(path)} ({what}): {cause}"
