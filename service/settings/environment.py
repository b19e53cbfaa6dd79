"""The names of our variables: one that is misspelled is an error, and not a default."""

import difflib
import re
from collections.abc import Collection, Mapping, Sequence

from service.settings.config import Config, Limits
from service.settings.files import FILE

PREFIX = "PALIMPSEST_"
#: Names a function of our tests that makes processes fail on purpose. No setting of a file.
FAULTS = PREFIX + "FAULTS"
#: Variables of the service's clients.
CLIENTS = frozenset(
    {
        *("ADDRESS", "TOKEN", "TOKEN_FILE", "PLAIN_TOKEN"),
        *("CA_FILE", "CERTIFICATE_FILE", "KEY_FILE"),
        *("HTTP_URL", "SESSION", "HOOK", "HOOK_TOKENS", "HOOK_SECONDS", "HOOK_QUEUE"),
    }
)
#: Variables that are no settings of the service: the file with more of them, its clients', the
#: embedded servers', what `up` passes to its processes, and the fault hook of our tests.
OTHERS = CLIENTS | {
    "SUPERUSER_DATABASE_URL",
    "CONFIG",
    "PG_BIN_DIR",
    "VALKEY_BIN",
    "PARENT_FD",
    "FAULTS",
}
#: How much of an unknown name is compared.
MAX_COMPARED_CHARACTERS = 80
#: The beginning of our tests' variables.
TESTS = "TEST_"
#: What Kubernetes sets in each container for every Service whose name begins with "palimpsest":
#: PALIMPSEST_SERVICE_HOST, PALIMPSEST_API_PORT_50051_TCP_ADDR and so on
#: (kubernetes.io/docs/concepts/services-networking/service, environment variables).
_OF_SERVICES = re.compile(
    r"(?:[A-Z0-9_]+_)?(?:SERVICE_HOST|SERVICE_PORT(?:_[A-Z0-9_]+)?"
    r"|PORT_\d+_(?:TCP|UDP|SCTP)(?:_(?:PROTO|PORT|ADDR))?)"
)
#: PALIMPSEST_PORT, PALIMPSEST_API_PORT: these are known by their values.
_PORT = re.compile(r"(?:[A-Z0-9_]+_)?PORT")
_PORT_VALUE = re.compile(r"(?:tcp|udp|sctp)://\S+")


def setting_names() -> frozenset[str]:
    """Returns the names of the service's settings, without their prefix."""
    limits = (f"LIMIT_{name.upper()}" for name in Limits.model_fields)
    return frozenset((*(name.upper() for name in Config.model_fields), *limits)) - {"LIMITS"}


def known_names() -> frozenset[str]:
    """Returns the names that count, without their prefix, and without those of files."""
    return setting_names() | OTHERS


def unknown_variables(environment: Mapping[str, str]) -> Sequence[tuple[str, str]]:
    """Returns the variables of ours that mean nothing, each with the nearest that does."""
    known = known_names().union(name + FILE for name in setting_names())
    found = []
    for variable, value in sorted(environment.items()):
        # In upper and lower case.
        name = variable.upper().removeprefix(PREFIX)
        is_ours = variable.upper().startswith(PREFIX) and not name.startswith(TESTS)
        if is_ours and name not in known and not _of_kubernetes(name, value):
            found.append((variable, PREFIX + _nearest(name)))
    return found


def _of_kubernetes(name: str, value: str) -> bool:
    if _OF_SERVICES.fullmatch(name):
        return True
    return bool(_PORT.fullmatch(name) and _PORT_VALUE.fullmatch(value))


def _nearest(name: str) -> str:
    settings = setting_names()
    # With the suffix, every name of a file would be near to all others.
    found = nearest(name.removesuffix(FILE), known_names())
    return found + FILE if name.endswith(FILE) and found in settings else found


def nearest(name: str, known: Collection[str]) -> str:
    """Returns the known name that is most like one that is not known."""
    # Comparing takes time in the square of the length.
    name = name[:MAX_COMPARED_CHARACTERS]

    def likeness(one: str) -> tuple[float, int, str]:
        # The shorter of two that are equally near: MODEL_NAME means MODEL.
        return difflib.SequenceMatcher(None, name, one).ratio(), -len(one), one

    return max(known, key=likeness)
