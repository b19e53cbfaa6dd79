"""What is asked of a tree."""

from dataclasses import dataclass

from service.domain.tree.asked import NavigationRequest


@dataclass(frozen=True, kw_only=True, slots=True)
class Question(NavigationRequest):
    """What is asked of a tree, and how it is to be navigated."""

    query: str
