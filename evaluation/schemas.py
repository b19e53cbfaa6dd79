"""The schema that PRISM memories of an evaluation have, unless the service is to write one.

It fits whatever can be asked about: stories, meetings, runs of agents. What a question may be
about has a place of its own, so that a chunk changes few of them.
"""

from enum import StrEnum

from service.domain.log.chunks import ChunkKind


class SchemaChoice(StrEnum):
    """Where the schema comes from."""

    #: GENERAL.
    GENERAL = "general"
    #: The service writes it, from what the document is and its first question.
    GENERATED = "generated"


TASK = (
    "Keep what is needed to answer any question about the text: who and what is in it, what"
    " happens, in which order and why, what was said, decided and found out. Keep names,"
    " numbers and the words that the text itself has for things."
)
GENERAL = '''
class Notes:
    """What has been read so far."""

    class Entry:
        """A person, a being, a group, a place or a thing that has a name or does something."""

        description: str
        """What it is and what it is like, in the words of the text."""
        facts: list[str]
        """What is said of it, one short sentence each: what it has, wants, feels, knows."""
        relations: dict[str, str]
        """How it is related to others, by their names."""

    class Event:
        """Something that happens, is done, said or decided."""

        what: str
        """Who did what to whom, where and when, in one sentence."""
        why: str | None
        """The cause or the purpose, where the text says it."""
        outcome: str | None
        """What came of it."""

    summary: str
    """The whole so far, in a few sentences."""
    entries: dict[str, Entry]
    """By name, as the text calls them."""
    events: list[Event]
    """In the order of the text."""
    statements: dict[str, list[str]]
    """Opinions, proposals and decisions, by who voiced them."""
    findings: dict[str, str]
    """Facts that do not change, such as dates, numbers and results, by what they are of."""
'''

#: What a schema is for, as the service is asked to write one.
DOMAINS = {
    ChunkKind.TEXT: "stories and other texts that are read from beginning to end",
    ChunkKind.MESSAGE: "transcripts of meetings and conversations of several speakers",
    ChunkKind.STEP: "runs of agents that look things up to answer a question",
}
