"""The offline model: deterministic, extractive, no network.

It is no language model and says so by its name. It reads the prompt that any model reads and
replies in the form that is asked for: it counts words, takes the sentences that fit, and fills
whatever schema it is given. The prompt's template says what is asked.
"""

import json
import re
from collections.abc import Callable, Sequence
from typing import Any

from service.domain.answers.browse.spec import BrowseAction, BrowseOption
from service.domain.answers.browse.wording import SAID, offered
from service.domain.prism.schemas.names import is_name
from service.domain.prompting.cutting import shortened
from service.domain.prompting.fitting import share_of
from service.domain.prompting.flows import ModelRequest
from service.domain.prompting.no_answers import NO_ANSWER
from service.domain.prompting.tokens import estimate_tokens
from service.domain.state.pinning import PINNED, behind, fitted, paragraph
from service.domain.values.json_values import canonical
from service.domain.values.paths import Path
from service.llm.offline.choosing import best, close_words, digest, passage, passages, rank
from service.llm.offline.filler import fill
from service.llm.offline.notes import entries, leaves, revise
from service.llm.offline.prompt import Prompt
from service.llm.offline.texts import Topic, sentences, stem, terms, wanted

#: Sentences of an answer from a memory, and of a note, a short and a long answer while browsing.
ANSWER, NOTE, SHORT, LONG = 3, 4, 2, 12
#: What of the question's words a text has that is of use, and that is answered from.
ENOUGH, PLENTY = 0.4, 0.6
#: Of a state vector, what the goal has at most, and what was last done and seen.
GOAL_SHARE, LATEST_SHARE = 1 / 5, 1 / 6
#: What a query is about by its words, the order of reading, and the options that suit it.
_SUBJECTS = (
    (r"[{};]\s*$|^\s*(?:def|class|import)\b|\bcode\b", "code", "backward", "scan", "rank"),
    (r"\b(?:how many|how often|list|all|every|each)\b", "overview", "forward", "independent"),
    (r"\b(?:summar\w+|overview|compar\w+|differ\w*)\b", "overview", "forward", "carry"),
    (r"\b(?:now|current\w*|latest|newest|today|still)\b", "state", "backward", "scan", "rank"),
    (r"", "fact", "forward", "rank", "scan"),
)
#: What is done with a piece, the first of these that is offered: for which share of the words,
#: and how many sentences it takes.
_WISHES = (
    (BrowseAction.ANSWER, PLENTY, SHORT),
    (BrowseAction.RETRIEVE, 0, 0),
    (BrowseAction.MERGE, ENOUGH, NOTE),
    (BrowseAction.APPEND, ENOUGH, NOTE),
    (BrowseAction.AGGREGATION, PLENTY, LONG),
    (BrowseAction.MOVE, 0, 0),
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
    """Returns the parts of a reply that the prompt's form has."""
    asked = {name: part for name, part in parts.items() if prompt.asks_for(name)}
    return json.dumps(asked, ensure_ascii=False)


# Answers


def _answer(prompt: Prompt) -> str:
    # The newest first: of what is said twice the later is right. A question answers nothing.
    parts = [(0, prompt.plain("TASK")), *((0, one) for one in prompt.texts("STATE"))]
    parts += [*prompt.numbered("LOG"), *prompt.numbered("STEPS")]
    said = [one for one in passages(parts[::-1]) if not one.text.endswith(("?", '?"', "？"))]
    if prompt.plain("SCHEMA"):
        said = [one for steps, value in entries(prompt) for one in leaves(value, steps)]
    found = best(said, prompt.query, ANSWER)
    text = " ".join(dict.fromkeys(one.text for one in found)) or NO_ANSWER
    if "[PATHS]\n" in prompt.instructions:
        name, lines = "PATHS", [str(Path(one.at)) for one in found]
    elif "[QUOTES]\n" in prompt.instructions:
        name, lines = "QUOTES", [f'{one.at[0]}: "{one.text}"' for one in found]
    else:
        name, lines = "STEPS", [str(one.at[0]) for one in found if one.at[0]]
    return "\n".join(["[ANSWER]", text, f"[{name}]", *dict.fromkeys(lines), ""])


def _found(prompt: Prompt, *names: str) -> str:
    """Returns the sentence that fits best, or the option that one has with most of the question."""
    said = passages((0, text) for name in names for text in prompt.texts(name))
    if not prompt.options:
        return next((one.text for one in best(said, prompt.query, 1)), "")
    known = {word for one in said for word in one.words}
    scores = {
        f"({letter}) {option}": rank(said, f"{prompt.query} {option}")[0][0]
        for letter, option in prompt.options.items()
        if known & wanted(option)
    }
    return max(scores, key=scores.__getitem__, default="")


def _guess(prompt: Prompt) -> str:
    first = "({}) {}".format(*next(iter(prompt.options.items())))
    answer = _found(prompt, "NOTES", "TEXT") or first
    why = "Its words are those that the notes have most of."
    return _json(prompt, notes=why, answer=answer, option=answer[1])


def _shape(prompt: Prompt) -> str:
    schema = json.loads(prompt.text("SCHEMA"))
    answer = Topic("", tuple(sentences(prompt.text("ANSWER"))))
    return canonical(fill(schema, schema, "", answer))


def _rerank(prompt: Prompt) -> str:
    said = [passage(text, number) for number, text in prompt.numbered("PASSAGES")]
    order = [one.at[0] for _, one in rank(said, prompt.query)]
    return json.dumps({"order": list(dict.fromkeys([*order, *(one.at[0] for one in said)]))})


def _schema(prompt: Prompt) -> str:
    """Returns a dict of what the question and the domain name most often."""
    text = f"{prompt.text('EXAMPLE QUERY')} {prompt.text('DOMAIN')}".casefold()
    words = [one for one in re.findall(r"[a-z]{3,40}", text) if terms(one) and is_name(one)]
    names = {stem(one): one for one in words}
    most = max(names, key=[stem(one) for one in words].count, default="")
    return _SCHEMA.format(name=names.get(most, "topics"))


# Trees


def _triage(prompt: Prompt) -> str:
    said = [passage(text, number) for number, text in prompt.numbered("SUMMARIES")]
    moves = re.findall(r"-?\d+", prompt.plain("MOVES"))
    able = [one for one in said if str(one.at[0]) in moves]
    beam = re.search(r"at most (\d+) parts in all", prompt.instructions)
    found = best(able, prompt.query, int(beam[1]) if beam else 1)
    # A summary leaves much out: while few of its parts were read, one may still have it.
    if not found and "-1" in moves and 2 * len(able) < len(said):
        return _json(prompt, notes="No summary that is left has a word of it.", action=["-1"])
    chosen = [str(one.at[0]) for one in found or able[:1]]
    why = "fits the question best" if found else "has no word of the question"
    return _json(prompt, notes=f"Summary {chosen[0]} {why}.", action=chosen)


def _leaf(prompt: Prompt) -> str:
    held = close_words(passages([(0, prompt.text("TEXT"))]), prompt.query)
    asked, answer = wanted(prompt.query), _found(prompt, "TEXT")
    why = f"Close together, the text has {len(held)} of the question's {len(asked)} words."
    # What is asked of number 1203 no other number answers. Digits alone may be words of options.
    numbers = set() if prompt.options else {one for one in asked if re.search(r"\d{2}", one)}
    if not answer or len(held) < ENOUGH * len(asked) or not numbers <= held:
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
    shown = [
        one if estimate_tokens(one) <= share else " ".join(_fitting(sentences(one), share))
        for one in texts
    ]
    return shortened("\n".join(shown), prompt.limit, estimate_tokens)


def _fitting(said: Sequence[str], tokens: int, query: str = "") -> list[str]:
    """Returns the sentences that say most, or the beginning of what has none."""
    return digest(said, tokens, query) or [shortened(" ".join(said), tokens, estimate_tokens)]


def _condensed(prompt: Prompt) -> str:
    """Returns notes, or what was read so far and what is new, in as many words as have room."""
    parts = [one for name in ("SUMMARY", "NOTES", "TEXT") for _, one in prompt.numbered(name)]
    said = [one for part in parts for one in sentences(part)]
    text = "\n".join(_fitting(said, prompt.limit, prompt.query))
    return _json(prompt, text=text) if prompt.asks_for("text") else text


def _vector(prompt: Prompt) -> str:
    """Returns the first goal, what is known, the old before the new, and what came last."""
    pinned, steps = prompt.texts("PINNED"), prompt.texts("STEPS")
    before = _read_vector(prompt.text("STATE") or prompt.text("EARLIER"), pinned)
    vectors = [_read_vector(text, pinned) for text in prompt.texts("STATES")]
    parts = [before, *(("", list[str](), _step(text)) for text in steps), *vectors]
    goals = (before[0], prompt.text("TASK"), *steps[:1], *(goal for goal, _, _ in vectors))
    told = next(filter(None, goals), "")
    room = prompt.limit - estimate_tokens(behind(pinned))
    goal = shortened(told, max(int(room * GOAL_SHARE), 1), estimate_tokens)
    last = digest(parts[-1][2], int(room * LATEST_SHARE), told)
    rest = [one for one in sentences(told) if one not in goal]
    rest += [one for _, known, latest in parts for one in (*known, *latest)]
    # Of what is said again it is the later that stays.
    rest = [one for one in dict.fromkeys(reversed(rest)) if one not in last][::-1]
    left = room - estimate_tokens(f"Goal: {goal} Known: Latest: {' '.join(last)} ")
    known = digest(rest, left, told)
    shown = {"Goal": [goal], "Known": known, "Latest": last}
    text = " ".join(f"{name}: {' '.join(said)}" for name, said in shown.items() if any(said))
    return fitted(paragraph(text, pinned), pinned, prompt.limit, estimate_tokens).text


def _read_vector(text: str, pinned: Sequence[str]) -> tuple[str, list[str], list[str]]:
    """Returns the goal of a vector, its own or another model's, what it knows, and its latest."""
    if pinned:
        # What was put after it is put there again.
        text = text.rpartition(f" {PINNED}")[0] or text
    first, *parts = re.split(r"(?:^| )(Goal|Known|Latest): ", text)
    goal, *known = sentences(first) or [""]
    named = dict(zip(parts[::2], parts[1::2], strict=True))
    known += sentences(named.get("Known", ""))
    return named.get("Goal", goal), known, sentences(named.get("Latest", ""))


def _step(text: str) -> list[str]:
    """Returns the sentences of a step, what was done before what was seen and thought."""
    parts = re.split(r"^(?=(?:Action|Observation|Thought): )", text, flags=re.MULTILINE)
    said = sentences("\n".join(sorted(part.rstrip("\n") for part in parts)))
    said = [re.sub("^(?:Observation|Thought): ", "", one) for one in said]
    return [one if re.search(r"[.!?…。！？؟।]\W*$", one) else f"{one}." for one in said]


# Browsing


def _understand(prompt: Prompt) -> str:
    found = (one for pattern, *one in _SUBJECTS if re.search(pattern, prompt.query, re.I))
    subject, order, *wishes = next(found)
    able = [one.value for one in BrowseOption if f"\n{one.value}: " in prompt.instructions]
    option = next(one for one in (*wishes, *able, "") if one in able or not able)
    query = " ".join(prompt.query.split())
    return _json(prompt, subject=subject, option=option, order=order, query=query)


def _browse(prompt: Prompt) -> str:
    """Returns what is done with a piece, or with all notes, and what they say."""
    said = passages(prompt.numbered("TEXT") or prompt.numbered("NOTES"))
    share = len(close_words(said, prompt.query)) / max(len(wanted(prompt.query)), 1)
    offers = [one for one in _WISHES if one[0] in offered(prompt.instructions)]
    if len(offers) > 1 and (not said or said[0].at != (1,)):
        # It searches at the beginning of the log, since it does not remember that it has searched.
        offers = [one for one in offers if one[0] is not BrowseAction.RETRIEVE]
    action, _, most = next((one for one in offers if share >= one[1]), offers[0])
    found = best(said, prompt.query, most)
    if most and not found and 'text is ""' not in prompt.instructions:
        # Where it may not pass a piece it takes its beginning.
        found = said[:1]
    texts = [one.text for one in found]
    if action is BrowseAction.MERGE:
        texts[:0] = [one for text in prompt.texts("NOTES") for one in sentences(text)]
    if action is BrowseAction.RETRIEVE:
        texts = [prompt.query.rpartition("\nLook for: ")[2]]
    text = " ".join(_fitting(list(dict.fromkeys(texts)), prompt.limit, prompt.query))
    quotes = [{"chunk": one.at[0], "words": one.text} for one in found]
    sources = sorted({int(one.at[0]) for one in found})
    return _json(prompt, action=SAID[action], text=text, quotes=quotes, sources=sources)


#: What answers each template, by its name without its version.
REPLIES: dict[str, Callable[[Prompt], str]] = {
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
    **dict.fromkeys(("browse.piece", "browse.close", "browse.read"), _browse),
    "schema.generate": _schema,
    "answer.shape": _shape,
    "search.rerank": _rerank,
    "tree.triage": _triage,
    "tree.leaf": _leaf,
    "tree.merge": _merge,
    "browse.understand": _understand,
    "baseline.read": lambda prompt: _found(prompt, "TEXT") or NO_ANSWER,
}
