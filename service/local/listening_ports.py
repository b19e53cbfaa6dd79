"""Checks that the addresses of a start are free, before anything is started."""

import errno
import socket
from collections.abc import Iterator

from service.settings import listening
from service.settings.config import Config


def refusal(config: Config, listen: str, over_http: str | None, workers: int) -> str | None:
    """Returns which addresses other processes have, and what chooses others; else None."""
    asked = _addresses(config, listen, over_http, workers)
    taken = [(address, option) for address, option in asked if _is_taken(address)]
    if not taken:
        return None
    addresses = ", ".join(address for address, _ in taken)
    options = ", ".join(dict.fromkeys(option for _, option in taken))
    are, others = ("is", "another address") if len(taken) == 1 else ("are", "other addresses")
    return (
        f"{addresses} {are} in use: stop what listens there (is it another `palimpsest up`?),"
        f" or choose {others} with {options}"
    )


def _addresses(
    config: Config, listen: str, over_http: str | None, workers: int
) -> Iterator[tuple[str, str]]:
    """Yields each address with the option that sets it."""
    yield listen, "--listen (PALIMPSEST_LISTEN)"
    if config.mutual_tls_listen is not None:
        yield config.mutual_tls_listen, "PALIMPSEST_MUTUAL_TLS_LISTEN"
    if over_http:
        yield over_http, "PALIMPSEST_HTTP_LISTEN"
    # The API has the first port, and each worker two.
    for number in range(1 + 2 * workers):
        address = listening.next_address(config.metrics_listen, number)
        if address is not None:
            yield address, "--metrics-listen (PALIMPSEST_METRICS_LISTEN)"


def _is_taken(address: str) -> bool:
    """Returns whether a socket listens there; what cannot be resolved is left to its server."""
    host, _, port = address.rpartition(":")
    if address.startswith("unix:") or port == "0":
        return False
    host = host.removeprefix("[").removesuffix("]")
    try:
        found = socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)
    except OSError:
        return False
    return any(_is_bound(family, place) for family, *_, place in found)


def _is_bound(family: int, place: tuple[object, ...]) -> bool:
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        # Connections that have ended do not keep a port.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        try:
            probe.bind(place)
        except OSError as error:
            return error.errno == errno.EADDRINUSE
    return False
