"""Reads the outline of a tree: its levels, the nodes without a parent, the text after them."""

from collections.abc import Sequence
from dataclasses import dataclass

from service.domain.tree.nodes import TextOffset
from service.domain.values.json_values import canonical
from service.usecases.log.lookup import item_key, revision_not_found
from storage.engine.database import Transaction
from storage.memories import history
from storage.memories.memories import StoredMemory
from storage.tree import views
from storage.tree.views import StoredNode, TreeLevel

#: Summaries that an outline shows, in bytes of UTF-8 together: it must fit a message.
MAX_SUMMARY_BYTES = 1024 * 1024


@dataclass(frozen=True, kw_only=True, slots=True)
class Outline:
    """A tree as of a revision."""

    revision: int
    #: All chunks up to here are in it, if only in its tail.
    applied_position: int
    #: It is closed.
    sealed: bool
    #: From the leaves upwards.
    levels: Sequence[TreeLevel]
    #: The nodes without a parent, in the order of the text.
    tops: Sequence[StoredNode]
    #: The tops' summaries, cut where they have more than MAX_SUMMARY_BYTES together.
    summaries: Sequence[str]
    #: Where the text begins that is not summarized; None when there is none.
    tail: TextOffset | None

    def value_json(self) -> str:
        """Returns the tree as a memory's value: canonical JSON as in GetMemoryResponse."""
        tail = self.tail
        return canonical(
            {
                "sealed": self.sealed,
                "tops": [
                    {
                        "node": top.node.node_id,
                        "from_position": top.node.from_position,
                        "to_position": top.node.to_position,
                        "summary": summary,
                    }
                    for top, summary in zip(self.tops, self.summaries, strict=True)
                ],
                "tail": None
                if tail is None
                else {"from_position": tail.position, "from_offset": tail.offset},
            }
        )


async def read_outline(
    tx: Transaction, stored: StoredMemory, revision: int | None = None
) -> Outline:
    """Returns the outline as of a revision; None: the newest of `stored`. Raises OutOfRange."""
    at = stored.revision if revision is None else revision
    if at > stored.revision:
        raise revision_not_found(stored.name, at, stored.revision)
    key = item_key(stored)
    applied = stored.applied_position
    if at != stored.revision:
        applied = (await history.read_revisions(tx, *key, [at]))[at].to_position
    levels = await views.count_levels(tx, *key, at)
    tops = await views.tops_of(tx, *key, levels)
    end = tops[-1].node.end if tops else TextOffset(1)
    return Outline(
        revision=at,
        applied_position=applied,
        # Nothing follows the revision that closed it.
        sealed=stored.status == "sealed" and at == stored.revision,
        levels=levels,
        tops=tops,
        summaries=shortened([top.node.summary for top in tops], MAX_SUMMARY_BYTES),
        tail=end if end < TextOffset(applied + 1) else None,
    )


def shortened(texts: Sequence[str], max_bytes: int) -> Sequence[str]:
    """Returns the texts, each cut to its share where they have more than `max_bytes` together."""
    if sum(len(text.encode()) for text in texts) <= max_bytes:
        return texts
    share = max_bytes // len(texts)
    return [_cut(text, share) for text in texts]


def _cut(text: str, max_bytes: int) -> str:
    raw = text.encode()
    if len(raw) <= max_bytes:
        return text
    mark = "…"
    room = max(max_bytes - len(mark.encode()), 0)
    return raw[:room].decode(errors="ignore") + mark
