"""The offline model: deterministic, extractive, no network.

It is no language model and says so by its name. It reads the prompt that any model reads and
replies in the form that is asked for: it counts words, takes the sentences that fit, and fills
whatever schema it is given. The prompt's template says what is asked.
"""

import json
import re
from collections.abc import Iterable, Sequence
from typing import Any

from service.domain.answers.browse.spec import BrowseAction, BrowseOption
from service.domain.answers.browse.wording import SAID, offered
from service.domain.prism.schemas.names import is_name
from service.domain.prism.schemas.source import parse_source
from service.domain.prism.schemas.tree import render
from service.domain.prompting.cutting import shortened
from service.domain.prompting.fitting import share_of
from service.domain.prompting.flows import ModelRequest
from service.domain.prompting.no_answers import NO_ANSWER
from service.domain.prompting.tokens import estimate_tokens
from service.domain.state.pinning import PINNED, behind, fitted, paragraph
from service.domain.values.json_values import canonical
from service.domain.values.paths import Path
from service.llm.offline.choosing import Passage, best, close_words, digest, passage, passages, rank
from service.llm.offline.filler import MISSING, Filler
from service.llm.offline.notes import leaves, revise
from service.llm.offline.prompt import Prompt
from service.llm.offline.texts import Topic, sentences, stem, terms, wanted

#: Sentences of a short answer, of an answer, of a note and of a long answer.
SHORT, ANSWER, NOTE, LONG = 2, 3, 4, 12
#: What of the question's words a text has that is of use; that is answered from, where reading
#: ends with the first that is; and that has the answer for certain.
ENOUGH, ENDING, PLENTY = 0.4, 0.6, 0.7
#: A further summary is named when its score is this share of the best.
NEARLY_AS_GOOD = 0.8
#: Of a state vector, what the goal has at most, and what was last done and seen.
GOAL_SHARE, LATEST_SHARE = 1 / 5, 1 / 6

_VECTOR = re.compile(
    r"(?=Goal: |Known: |Latest: )(?:Goal: (.*?))?(?: ?Known: (.*?))?(?: ?Latest: (.*))?", re.S
)
#: What a query is about by its words, the order of reading, and the options that suit it.
_SUBJECTS = (
    (r"[{};]\s*$|^\s*(?:def|class|import)\b|\bcode\b", "code", "backward", "scan", "rank"),
    (r"\b(?:how many|how often|list|all|every|each)\b", "overview", "forward", "independent"),
    (r"\b(?:summar\w+|overview|compar\w+|differ\w*)\b", "overview", "forward", "carry"),
    (r"\b(?:now|current\w*|latest|newest|today|still)\b", "state", "backward", "scan", "rank"),
    (r"", "fact", "forward", "rank", "scan"),
)

_SCHEMA = '''\
class Notes:
    """Made without a language model, from the words of the domain and of the question.
    Read it, and change what does not fit, before a memory is kept by it."""
    {name}: dict[str, list[str]]
    """Keyed by name: sentences that make sense by themselves."""
'''


def complete(request: ModelRequest) -> str:
    """Returns the reply to a prompt. Raises ValueError for a template that it does not know."""
    name = request.template.partition("/")[0]
    if name not in REPLIES:
        raise ValueError(f"the offline model does not know the template {request.template}")
    return REPLIES[name](Prompt(request))


def _json(prompt: Prompt, **parts: Any) -> str:
    """The parts of a reply that the prompt's form has."""
    asked = {name: part for name, part in parts.items() if prompt.asks_for(name)}
    return json.dumps(asked, ensure_ascii=False)


# Answers


def _answer(prompt: Prompt) -> str:
    # The newest first: of what is said twice the later is right. A question answers nothing.
    parts = [(0, prompt.plain("TASK")), *((0, one) for one in prompt.texts("STATE"))]
    parts += [*prompt.numbered("LOG"), *prompt.numbered("STEPS")]
    said = [one for one in passages(parts[::-1]) if not one.text.endswith(("?", '?"', "？"))]
    found = best(leaves(prompt) if prompt.plain("SCHEMA") else said, prompt.query, ANSWER)
    text = " ".join(dict.fromkeys(one.text for one in found)) or NO_ANSWER
    if "[PATHS]\n" in prompt.instructions:
        name, lines = "PATHS", [str(Path(one.at)) for one in found]
    elif "[QUOTES]\n" in prompt.instructions:
        name, lines = "QUOTES", [f'{one.at[0]}: "{one.text}"' for one in found]
    else:
        name, lines = "STEPS", [str(one.at[0]) for one in found if one.at[0]]
    return "\n".join(["[ANSWER]", text, f"[{name}]", *dict.fromkeys(lines), ""])


def _read(prompt: Prompt) -> str:
    said = passages((0, text) for text in prompt.texts("TEXT"))
    if prompt.options:
        return _option(prompt, said) or NO_ANSWER
    return next((one.text for one in best(said, prompt.query, 1)), NO_ANSWER)


def _option(prompt: Prompt, said: Sequence[Passage]) -> str:
    """The option that a sentence has with most of the question, its letter first."""
    known = {word for one in said for word in one.words}
    scores = {
        f"({letter}) {option}": rank(said, f"{prompt.query} {option}")[0][0]
        for letter, option in prompt.options.items()
        if known & wanted(option)
    }
    return max(scores, key=scores.__getitem__, default="")


def _guess(prompt: Prompt) -> str:
    texts = [*prompt.texts("NOTES"), *prompt.texts("TEXT")]
    first = "({}) {}".format(*next(iter(prompt.options.items())))
    answer = _option(prompt, passages((0, one) for one in texts)) or first
    why = "Its words are those that the notes have most of."
    return _json(prompt, notes=why, answer=answer, option=answer[1])


def _shape(prompt: Prompt) -> str:
    filler = Filler(json.loads(prompt.text("SCHEMA")))
    value = filler.fill(filler.schema, "", Topic("", tuple(sentences(prompt.text("ANSWER")))))
    return canonical(None if value is MISSING else value)


def _rerank(prompt: Prompt) -> str:
    said = [passage(text, number) for number, text in prompt.numbered("PASSAGES")]
    order = [one.at[0] for _, one in rank(said, prompt.query)]
    return json.dumps({"order": list(dict.fromkeys([*order, *(one.at[0] for one in said)]))})


def _schema(prompt: Prompt) -> str:
    """A dict of the thing that both the question and the domain name."""
    asked, domain = (
        [one for one in re.findall(r"[a-z]{3,40}", prompt.text(name).casefold()) if terms(one)]
        for name in ("EXAMPLE QUERY", "DOMAIN")
    )
    known = {stem(one): one for one in domain if is_name(one)}
    names = [*(known[stem(one)] for one in asked if stem(one) in known), *asked, *domain, "topics"]
    return render(parse_source(_SCHEMA.format(name=next(filter(is_name, names)))))


# Trees


def _triage(prompt: Prompt) -> str:
    said = [passage(text, number) for number, text in prompt.numbered("SUMMARIES")]
    scores = {one.at[0]: score for score, one in rank(said, prompt.query)}
    moves = [int(one) for one in re.findall(r"-?\d+", prompt.plain("MOVES"))]
    order = sorted((one for one in moves if one >= 0), key=lambda one: -scores.get(one, 0.0))
    most = scores.get(order[0], 0.0)
    # A summary leaves much out: while few of its parts were read, one may still have it.
    if -1 in moves and not most and 2 * len(order) < len(said):
        return _json(prompt, notes="No summary that is left has a word of it.", action=["-1"])
    beam = re.search(r"at most (\d+) parts in all", prompt.instructions)
    able = [one for one in order[1:] if scores.get(one, 0.0) > NEARLY_AS_GOOD * most]
    chosen = [str(one) for one in [order[0], *able][: int(beam[1]) if beam else 1]]
    why = "fits the question best" if most else "has no word of the question"
    return _json(prompt, notes=f"Summary {order[0]} {why}.", action=chosen)


def _leaf(prompt: Prompt) -> str:
    held = close_words(passages([(0, prompt.text("TEXT"))]), prompt.query)
    asked, answer = wanted(prompt.query), _read(prompt)
    why = f"Close together, the text has {len(held)} of the question's {len(asked)} words."
    # What is asked of number 1203 no other number answers. Digits alone may be words of options.
    numbers = set() if prompt.options else {one for one in asked if re.search(r"\d{2}", one)}
    if answer == NO_ANSWER or len(held) < ENOUGH * len(asked) or not numbers <= held:
        return _json(prompt, notes=why, action="-1", answer="")
    return _json(prompt, notes=why, action="-2", answer=answer)


def _merge(prompt: Prompt) -> str:
    given = [text.partition("\n\n")[0] for text in prompt.texts("ANSWERS")]
    fits = [one.text for _, one in rank([passage(one) for one in given], prompt.query)]
    answer = max([*fits, *given], key=given.count)
    sources = [str(number) for number, one in enumerate(given) if one == answer]
    why = f"It was given by {len(sources)} and fits the question best."
    return _json(prompt, notes=why, answer=answer, sources=sources)


# Summaries


def _summary(prompt: Prompt) -> str:
    texts = prompt.texts("SUMMARIES") or prompt.texts("TEXT")
    # The line ends between them have a byte each.
    room = prompt.limit - estimate_tokens("\n" * (len(texts) - 1))
    share = max(share_of([estimate_tokens(one) for one in texts], room), 1)
    return shortened("\n".join(_short(one, share) for one in texts), prompt.limit, estimate_tokens)


def _short(text: str, tokens: int) -> str:
    if estimate_tokens(text) <= tokens:
        return text
    return " ".join(digest(sentences(text), tokens)) or shortened(text, tokens, estimate_tokens)


def _condensed(prompt: Prompt) -> str:
    """Notes, or what was read so far and what is new, in as many words as there is room for."""
    parts = [one for name in ("SUMMARY", "NOTES", "TEXT") for _, one in prompt.numbered(name)]
    said = [one for part in parts for one in sentences(part)]
    text = "\n".join(digest(said, prompt.limit, prompt.query))
    text = text or shortened(" ".join(said), prompt.limit, estimate_tokens)
    return _json(prompt, text=text) if prompt.asks_for("text") else text


def _vector(prompt: Prompt) -> str:
    """Returns the first goal, what is known, the old before the new, and what came last."""
    pinned = prompt.texts("PINNED")
    told, known, latest = _told(prompt.text("STATE") or prompt.text("EARLIER"), pinned)
    told = told or prompt.text("TASK") or next(iter(prompt.texts("STEPS")), "")
    for text in prompt.texts("STEPS"):
        known, latest = [*known, *latest], _step(text)
    for text in prompt.texts("STATES"):
        goal, its_known, its_latest = _told(text, pinned)
        told, known, latest = told or goal, [*known, *latest, *its_known], its_latest
    room = prompt.limit - estimate_tokens(behind(pinned))
    goal = shortened(told, max(int(room * GOAL_SHARE), 1), estimate_tokens)
    last = digest(latest, int(room * LATEST_SHARE), told)
    rest = [one for one in sentences(told) if one not in goal]
    # Of what is said again it is the later that stays.
    rest = list(dict.fromkeys(reversed([*rest, *known, *latest])))[::-1]
    left = room - estimate_tokens(f"Goal: {goal} Known: Latest: {' '.join(last)} ")
    held = digest([one for one in rest if one not in last], left, told)
    parts = {"Goal": [goal], "Known": held, "Latest": last}
    text = " ".join(f"{name}: {' '.join(said)}" for name, said in parts.items() if any(said))
    return fitted(paragraph(text, pinned), pinned, prompt.limit, estimate_tokens).text


def _told(text: str, pinned: Sequence[str]) -> tuple[str, list[str], list[str]]:
    """The goal of a vector, its own or another model's, what it knows, and its latest."""
    if pinned:
        # What was put after it is put there again.
        text = text.rpartition(f" {PINNED}")[0] or text
    if found := _VECTOR.fullmatch(text):
        return found[1] or "", sentences(found[2] or ""), sentences(found[3] or "")
    goal, *known = sentences(text) or [""]
    return goal, known, []


def _step(text: str) -> list[str]:
    """The sentences of a step, what was done before what was seen and thought."""
    parts = re.split(r"^(?=(?:Action|Observation|Thought): )", text, flags=re.MULTILINE)
    said = sentences("\n".join(sorted(part.rstrip("\n") for part in parts)))
    said = [re.sub("^(?:Observation|Thought): ", "", one) for one in said]
    return [one if re.search(r"[.!?…。！？؟।]\W*$", one) else f"{one}." for one in said]


# Browsing


def _understand(prompt: Prompt) -> str:
    query = " ".join(prompt.query.split())
    found = (one for pattern, *one in _SUBJECTS if re.search(pattern, prompt.query, re.I))
    subject, order, *wishes = next(found)
    able = [one.value for one in BrowseOption if f"\n{one.value}: " in prompt.instructions]
    option = next(one for one in (*wishes, *able, "") if one in able or not able)
    return _json(prompt, subject=subject, option=option, order=order, query=query)


def _piece(prompt: Prompt) -> str:
    offers, said = offered(prompt.instructions), passages(prompt.numbered("TEXT"))
    share = len(close_words(said, prompt.query)) / max(len(wanted(prompt.query)), 1)
    extracts = not {BrowseAction.APPEND, BrowseAction.MERGE}.isdisjoint(offers)
    if BrowseAction.RETRIEVE in offers and share < PLENTY and said and said[0].at == (1,):
        # Once, at the beginning of the log: it does not remember that it has searched.
        return _browsed(prompt, BrowseAction.RETRIEVE, [prompt.query.rpartition("\nLook for: ")[2]])
    found = best(said, prompt.query, NOTE) if share >= (ENOUGH if extracts else ENDING) else []
    if not found and BrowseAction.MOVE in offers:
        return _browsed(prompt, BrowseAction.MOVE, [])
    # Where it may not pass a piece it takes its beginning.
    found = found or said[:1]
    texts = list(dict.fromkeys(one.text for one in found))
    if BrowseAction.ANSWER in offers and (share >= PLENTY or not extracts):
        return _browsed(prompt, BrowseAction.ANSWER, texts[:SHORT], found)
    if BrowseAction.MERGE in offers:
        known = [one for text in prompt.texts("NOTES") for one in sentences(text)]
        merged = digest([*dict.fromkeys([*known, *texts])], prompt.limit, prompt.query)
        return _browsed(prompt, BrowseAction.MERGE, merged, found)
    action = BrowseAction.APPEND if extracts else BrowseAction.AGGREGATION
    return _browsed(prompt, action, digest(texts, prompt.limit) or texts, found)


def _close(prompt: Prompt) -> str:
    said = passages(prompt.numbered("NOTES") or prompt.numbered("TEXT"))
    is_long = BrowseAction.ANSWER not in offered(prompt.instructions)
    found = best(said, prompt.query, LONG if is_long else SHORT)
    found = sorted(found, key=said.index) if is_long else found
    action = BrowseAction.AGGREGATION if is_long else BrowseAction.ANSWER
    return _browsed(prompt, action, dict.fromkeys(one.text for one in found), found)


def _browsed(
    prompt: Prompt, action: BrowseAction, texts: Iterable[str], found: Sequence[Passage] = ()
) -> str:
    quotes = [{"chunk": one.at[0], "words": one.text} for one in found]
    sources = sorted({int(one.at[0]) for one in found})
    return _json(prompt, action=SAID[action], text=" ".join(texts), quotes=quotes, sources=sources)


#: What answers each template, by its name without its version.
REPLIES = {
    **dict.fromkeys(("prism.revise", "prism.revise-focused"), revise),
    # It repeats nothing that it has noted: there is nothing to tidy.
    **dict.fromkeys(("prism.consolidate", "prism.consolidate-part"), lambda _: '{"changes": []}'),
    **dict.fromkeys(
        ("prism.answer", "prism.answer-focused", "state.answer", "whole.answer"), _answer
    ),
    **dict.fromkeys(("state.compress", "state.episode"), _vector),
    **dict.fromkeys(("tree.summarize", "tree.compress"), _summary),
    **dict.fromkeys(("tree.remember", "browse.condense", "baseline.carry"), _condensed),
    **dict.fromkeys(("tree.guess", "browse.guess"), _guess),
    **dict.fromkeys(("browse.close", "browse.read"), _close),
    "schema.generate": _schema,
    "answer.shape": _shape,
    "search.rerank": _rerank,
    "tree.triage": _triage,
    "tree.leaf": _leaf,
    "tree.merge": _merge,
    "browse.understand": _understand,
    "browse.piece": _piece,
    "baseline.read": _read,
}
