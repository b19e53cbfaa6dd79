"""What is asked of a tree, and how a question wants it navigated."""

from dataclasses import dataclass

from service.domain.answers.navigation_request import NavigationRequest


@dataclass(frozen=True, kw_only=True, slots=True)
class TreeQuestion(NavigationRequest):
    """What is asked of a tree, and how it is to be navigated."""

    query: str
