"""Decides where the API may listen: beyond this machine with TLS and authentication only."""

import ipaddress
from collections.abc import Sequence

from service.settings.certificates import has_tls
from service.settings.config import Config

MAX_PORT = 65_535
#: The ports of the API, unless others are set.
GRPC_PORT, HTTP_PORT = 50051, 50080

#: What a client may do where there is no authentication.
_OPEN = "any client can read and write all sessions, spend money on models, and remove budgets"


def is_local(address: str) -> bool:
    """Returns whether only this machine reaches HOST:PORT or unix:PATH.

    A name counts as what it may be anywhere: only `localhost` is this machine.
    """
    if address.startswith("unix:"):
        return True
    host = address.rpartition(":")[0].removeprefix("[").removesuffix("]")
    if host == "localhost":
        return True
    try:
        found = ipaddress.ip_address(host)
    except ValueError:
        return False
    return (getattr(found, "ipv4_mapped", None) or found).is_loopback


def metrics_refusal(config: Config, ports: int = 1) -> str | None:
    """Returns why the metrics of so many more processes find no port, and what to set, else None.

    They have those next to the one that is configured (`next_address`).
    """
    if config.metrics_listen is None:
        return None
    port = int(config.metrics_listen.rpartition(":")[2])
    if port == 0 or port + ports <= MAX_PORT:
        return None
    return (
        f"{config.metrics_listen}: processes that are started beside have the next {ports}"
        f" port(s) for their metrics, and there are too few: choose a port up to {MAX_PORT - ports}"
    )


def next_address(address: str | None, ports: int = 1) -> str | None:
    """Returns HOST:PORT so many ports further; of port 0, which is any, itself."""
    if address is None:
        return None
    host, _, port = address.rpartition(":")
    return address if int(port) == 0 else f"{host}:{int(port) + ports}"


def is_authenticated(config: Config) -> bool:
    """Returns whether each call needs a key, a token or a client certificate."""
    if config.authentication is not None:
        return config.authentication == "required"
    if config.jwt_issuer is not None or config.tls_client_ca_file is not None:
        # What terminates TLS may forward the calls of other machines to an address of this one.
        return True
    return not config.insecure and not all(is_local(one) for one in addresses(config))


def grpc_addresses(config: Config) -> Sequence[str]:
    """Returns where the API listens for gRPC."""
    other = config.mutual_tls_listen
    return (config.listen,) if other is None else (config.listen, other)


def addresses(config: Config) -> Sequence[str]:
    """Returns where the API listens, by any protocol."""
    over_http = () if config.http_listen is None else (config.http_listen,)
    return (*grpc_addresses(config), *over_http)


def http_address(config: Config, listen: str) -> str | None:
    """Returns where `up` serves HTTP: beside gRPC's address, if no other is set; None: nowhere.

    It is nowhere if the setting is set and empty. `listen` is gRPC's address.
    """
    if "http_listen" in config.model_fields_set or listen.startswith("unix:"):
        return config.http_listen
    host, _, port = listen.rpartition(":")
    # Several on one machine have ports of their own for gRPC, and then here.
    return f"{host}:{HTTP_PORT if int(port) == GRPC_PORT else 0}"


def risk(config: Config) -> str | None:
    """Returns what is wrong where the API listens, else None.

    An address that only this machine reaches needs neither TLS nor authentication.
    """
    reached = [one for one in addresses(config) if not is_local(one)]
    missing = [] if is_authenticated(config) else [f"there is no authentication: {_OPEN}"]
    if not has_tls(config):
        missing.append("there is no TLS: what is sent, keys included, can be read on its way")
    if not reached or not missing:
        return None
    return f"{' and '.join(reached)} can be reached from other machines, and {'; '.join(missing)}"


def refusal(config: Config) -> str | None:
    """Returns why the API does not listen where it is configured to, and what to set, else None."""
    found = risk(config)
    if config.insecure or found is None:
        return None
    return (
        f"{found}. Set PALIMPSEST_TLS_CERTIFICATE_FILE and PALIMPSEST_TLS_KEY_FILE, and leave"
        " PALIMPSEST_AUTHENTICATION unset; or listen at 127.0.0.1 or at unix:PATH; or accept it"
        " with --insecure (PALIMPSEST_INSECURE=true)"
    )


def access_line(config: Config) -> str:
    """Returns who may use the API, in a sentence, for the output of a start."""
    if is_authenticated(config):
        transport = "by TLS" if has_tls(config) else "WITHOUT TLS"
        other = config.mutual_tls_listen if config.tls_client_ca_file is not None else None
        where = f"; with a certificate at {other}" if other else ""
        return f"Clients need a key, a token or a certificate; {transport}{where}"
    if risk(config) is None:
        return "Clients need no key and act for the default tenant: only this machine reaches it"
    return f"INSECURE: {risk(config)}"
