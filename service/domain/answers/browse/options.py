"""Options that are settled without task understanding, by the actions that are allowed."""

from service.domain.answers.browse.spec import BrowseAction, BrowseOption, BrowseRequest

_OBTAINING = frozenset(
    {BrowseAction.RETRIEVE, BrowseAction.APPEND, BrowseAction.MERGE, BrowseAction.MOVE}
)
#: What makes notes.
EXTRACTING = frozenset({BrowseAction.APPEND, BrowseAction.MERGE})


def without_understanding(request: BrowseRequest) -> BrowseOption:
    """DYNAMIC when there is something to choose; else the only option that the actions allow."""
    if request.option is not BrowseOption.AUTO:
        return request.option
    obtaining = request.actions & _OBTAINING
    if len(obtaining) > 1 and obtaining & EXTRACTING:
        return BrowseOption.DYNAMIC
    if BrowseAction.RETRIEVE in obtaining:
        # With move it is the seventh setting of section 4.4: the best, selectively processed.
        return BrowseOption.RANK
    if BrowseAction.MERGE in obtaining:
        return BrowseOption.CARRY
    return BrowseOption.INDEPENDENT


def settled(request: BrowseRequest) -> BrowseOption | None:
    """The option as far as it is known before a model is asked; None: it will choose."""
    may_choose = BrowseAction.TASK_UNDERSTANDING in request.actions and not request.rewritten_query
    if request.option is BrowseOption.AUTO and may_choose:
        return None
    return without_understanding(request)
