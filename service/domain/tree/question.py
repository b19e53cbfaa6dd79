"""What is asked of a tree."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """What is asked of a tree, and how it is to be navigated."""

    query: str
    #: Of a multiple-choice question, at most 26; the answer is one of them, word for word.
    options: tuple[str, ...] = ()
    #: Begin with so many leaves that retrieval finds best, at most 32; 0: at the root.
    hybrid_leaves: int = 0
    #: Nodes that are explored at once; 1 to 8.
    beam: int = 1
    #: Model calls that it may cost; 1 to 1,000.
    max_calls: int = 50
