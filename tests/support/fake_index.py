"""An index in memory that does what the one in Redis does, for tests without Redis."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from service.domain.calls.prefix_index import Boundary, CachedPrefix, PrefixQuery, Seen, Sent
from storage.calls.deployment_state import BUCKETS


@dataclass
class DictIndex:
    """Forgets nothing; can be lost."""

    known: bool = True
    #: By hash, id and deployment.
    held: dict[tuple[str, bytes, str], Boundary] = field(default_factory=dict)
    queues: dict[str, int] = field(default_factory=dict)
    counts: dict[str, list[list[float]]] = field(default_factory=dict)
    prompts: list[Sent] = field(default_factory=list)
    questions: list[PrefixQuery] = field(default_factory=list)

    async def look(self, question: PrefixQuery) -> Seen:
        self.questions.append(question)
        if not self.known:
            return Seen.nothing(question)
        return Seen(
            known=True,
            cached=tuple(self._cached(question, deployment) for deployment in question.deployments),
            queued_tokens=tuple(
                self.queues.get(deployment, 0) * question.with_load
                for deployment in question.deployments
            ),
        )

    def _cached(self, question: PrefixQuery, deployment: str) -> CachedPrefix:
        found = []
        for depth, one in enumerate(question.ids, start=1):
            key = question.group_key if depth == 1 else question.memory_key
            held = self.held.get((key, one, deployment))
            if held is not None:
                found.append(replace(held, depth=depth))
        since = int(question.now) - question.ttl_seconds
        fresh = [one for one in found if one.touched > since]
        return CachedPrefix(
            fresh=fresh[-1] if fresh else None, deepest=found[-1] if found else None
        )

    async def sent(self, prompt: Sent) -> None:
        self.prompts.append(prompt)
        if not self.known:
            return
        for at, (one, tokens) in enumerate(prompt.boundaries):
            key = prompt.group_key if at == 0 and prompt.with_group else prompt.memory_key
            self.held[key, one, prompt.deployment] = Boundary(
                depth=1, tokens=tokens, touched=int(prompt.now), exact=one == prompt.exact
            )
        if prompt.outcome is not None:
            counts = self.counts.setdefault(prompt.deployment, [[0.0, 0.0] for _ in range(BUCKETS)])
            counts[prompt.outcome.bucket][not prompt.outcome.survived] += 1

    async def queued(self, deployment: str, tokens: int, now: float) -> None:
        self.queues[deployment] = tokens

    async def outcomes(self, deployment: str, now: float) -> Sequence[tuple[float, float]]:
        return [(hits, misses) for hits, misses in self.counts.get(deployment, [])]
