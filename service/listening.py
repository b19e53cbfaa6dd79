"""Where the API may listen: nothing keeps out whoever reaches it, so on this machine only."""

import ipaddress

from service.config import Config

#: What can be said of an address that everyone can reach.
OPEN = (
    "there is neither authentication nor encryption: who reaches it reads and writes all"
    " sessions, spends money at the models, and lifts budgets"
)


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


def next_address(address: str | None, ports: int = 1) -> str | None:
    """Returns HOST:PORT so many ports further; of port 0, which is any, itself."""
    if address is None:
        return None
    host, _, port = address.rpartition(":")
    return address if int(port) == 0 else f"{host}:{int(port) + ports}"


def refusal(config: Config) -> str | None:
    """Returns why the API does not listen where it is configured to, and what to set, else None."""
    if config.insecure or is_local(config.listen):
        return None
    return (
        f"{config.listen} can be reached from other machines, and {OPEN}. Listen at"
        " 127.0.0.1 or at unix:PATH, or accept it with --insecure (PALIMPSEST_INSECURE=true)"
    )
