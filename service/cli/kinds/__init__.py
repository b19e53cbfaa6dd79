"""Registers the kinds of memories for the command line: an entry for each.

Clients see the kind of a memory as `MemoryInfo.kind`. No command compares it.
"""

from service.cli.kinds.kind import KindCommands
from service.cli.kinds.prism import PrismKind
from service.cli.kinds.state import StateKind
from service.cli.kinds.tree import TreeKind

#: All kinds of memories, by name.
KINDS: dict[str, KindCommands] = {one.name: one for one in (PrismKind(), TreeKind(), StateKind())}
#: The kind of a memory for which a command names none.
DEFAULT_KIND = PrismKind.name
