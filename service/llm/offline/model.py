"""The offline model: deterministic, extractive, no network.

It is no language model and says so by its name. It reads the prompt that any model reads and
replies in the form that is asked for: it counts words, takes the sentences that fit, and fills
whatever schema it is given. The prompt's template says what is asked.
"""

import json
import re
from collections.abc import Callable
from typing import Any

from service.domain.answers.browse.spec import BrowseAction, BrowseOption
from service.domain.answers.browse.wording import SAID, offered
from service.domain.prompting.cutting import shortened
from service.domain.prompting.fitting import share_of
from service.domain.prompting.flows import ModelRequest
from service.domain.prompting.no_answers import NO_ANSWER, is_blank
from service.domain.prompting.tokens import estimate_tokens
from service.domain.state.pinning import PINNED, behind, fitted, paragraph
from service.domain.values.json_values import canonical
from service.domain.values.paths import Path
from service.llm.offline.choosing import best, digest, passage, passages, rank, words_together
from service.llm.offline.filler import fill
from service.llm.offline.notes import entries, leaves, revise
from service.llm.offline.prompt import Prompt
from service.llm.offline.texts import Topic, sentences, wanted

#: Sentences of an answer from a memory, and of a note, a short and a long answer while browsing.
ANSWER, NOTE, SHORT, LONG = 3, 4, 2, 12
#: Shares of the question's words: of a text that is of use, and of one that is answered from.
ENOUGH, PLENTY = 0.4, 0.6
#: The share of a state vector that its goal may have at most, and what came last.
END_SHARE = 1 / 5
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
    """Made without a language model, and the same for all domains and questions.
    Read it, and change what does not fit, before a memory is kept by it."""
    topics: dict[str, list[str]]
    """Keyed by name: sentences that make sense by themselves."""
'''


def complete(request: ModelRequest) -> str:
    """Returns the reply to a prompt. Raises ValueError for a template that it does not know."""
    name = request.template.partition("/")[0].removesuffix("-focused")
    if name not in REPLIES:
        raise ValueError(f"the offline model does not know the template {request.template}")
    return REPLIES[name](Prompt(request))


def _json(prompt: Prompt, **parts: Any) -> str:
    """Returns the parts of a reply that the prompt's form has."""
    asked = {name: part for name, part in parts.items() if prompt.asks_for(name)}
    return json.dumps(asked, ensure_ascii=False)


# Answers


def _answer(prompt: Prompt) -> str:
    # The newest first: the later of two statements is right. A question answers nothing.
    parts = [(0, prompt.plain("TASK")), *((0, one) for one in prompt.texts("STATE"))]
    parts += [*prompt.numbered("LOG"), *prompt.numbered("STEPS")]
    said = [one for one in passages(parts[::-1]) if not one.text.endswith(("?", '?"', "？"))]
    if prompt.plain("SCHEMA"):
        said = [one for path, value in entries(prompt) for one in leaves(value, path)]
    # Marks alone are no answer to a reader.
    found = best([one for one in said if not is_blank(one.text)], prompt.query, ANSWER)
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


# Trees


def _triage(prompt: Prompt) -> str:
    said = [passage(text, number) for number, text in prompt.numbered("SUMMARIES")]
    moves = re.findall(r"-?\d+", prompt.plain("MOVES"))
    able = [one for one in said if str(one.at[0]) in moves]
    several = re.search(r"at most (\d+) parts in all", prompt.instructions)
    beam = int(several[1]) if several else 1
    # Summaries may be equal: the vectors of a quiet time are.
    found = best(able, prompt.query, beam)[:beam]
    # A summary leaves much out: while few of its parts were read, one may still have it.
    if not found and "-1" in moves and 2 * len(able) < len(said):
        return _json(prompt, notes="No summary that is left has a word of it.", action=["-1"])
    chosen = [str(one.at[0]) for one in found or able[:1]]
    why = "fits the question best" if found else "has no word of the question"
    return _json(prompt, notes=f"Summary {chosen[0]} {why}.", action=chosen)


def _leaf(prompt: Prompt) -> str:
    held = words_together(passages([(0, prompt.text("TEXT"))]), prompt.query)
    asked, answer = wanted(prompt.query), _found(prompt, "TEXT")
    why = f"One sentence has {len(held)} of the question's {len(asked)} words."
    # A question about number 1203 has no answer from other numbers. Options may be digits alone.
    numbers = set() if prompt.options else {one for one in asked if re.search(r"\d{2}", one)}
    if not answer or len(held) < ENOUGH * len(asked) or not numbers <= held:
        return _json(prompt, notes=why, action="-1", answer="")
    return _json(prompt, notes=why, action="-2", answer=answer)


def _merge(prompt: Prompt) -> str:
    given = [text.partition("\n\n")[0] for text in prompt.texts("ANSWERS")]
    answer = max(given, key=given.count)
    sources = [str(number) for number, one in enumerate(given) if one == answer]
    why = f"It was given by {len(sources)} of {len(given)}."
    return _json(prompt, notes=why, answer=answer, sources=sources)


# Summaries


def _summary(prompt: Prompt) -> str:
    texts = prompt.texts("SUMMARIES") or prompt.texts("TEXT")
    # The line ends between them have a byte each.
    room = prompt.limit - estimate_tokens("\n" * (len(texts) - 1))
    share = max(share_of([estimate_tokens(one) for one in texts], room), 1)
    shown = [" ".join(digest(sentences(one), share)) for one in texts]
    return shortened("\n".join(shown), prompt.limit, estimate_tokens)


def _condensed(prompt: Prompt) -> str:
    """Returns notes, or what was read so far and what is new, in as many words as have room."""
    parts = [one for name in ("SUMMARY", "NOTES", "TEXT") for _, one in prompt.numbered(name)]
    said = [one for part in parts for one in sentences(part)]
    text = "\n".join(digest(said, prompt.limit, prompt.query))
    return _json(prompt, text=text) if prompt.asks_for("text") else text


def _vector(prompt: Prompt) -> str:
    """Returns the first goal, what is known, the old before the new, and what came last."""
    pinned, steps = prompt.texts("PINNED"), "\n".join(prompt.texts("STEPS"))
    before = prompt.text("STATE") or prompt.text("EARLIER")
    if pinned:
        # The pinned strings at its end are put there again.
        before = before.rpartition(f" {PINNED}")[0] or before
    steps = re.sub("^(?:Observation|Thought): ", "", steps, flags=re.MULTILINE)
    texts = [before, prompt.text("TASK"), steps, *prompt.texts("STATES")]
    said = [one for text in texts for one in sentences(text)] or [""]
    # All end as sentences do, so that they are sentences of the vector.
    said = [one if one[-1:] in ".!?…。！？؟।" else f"{one}." for one in said]
    room = prompt.limit - estimate_tokens(behind(pinned))
    share = max(int(room * END_SHARE), 1)
    goal = shortened(said[0], share, estimate_tokens)
    last = shortened("".join(said[1:][-1:]), share, estimate_tokens)
    # The vectors of a level all begin with the goal. The later of two equal sentences stays.
    ends = {said[-1], said[0]} if prompt.texts("STATES") else {said[-1]}
    rest = [one for one in dict.fromkeys(said[:0:-1]) if one not in ends][::-1]
    known = digest(rest, room - estimate_tokens(f"{goal} {last} "), said[0])
    text = " ".join([goal, *known, last])
    return fitted(paragraph(text, pinned), pinned, prompt.limit, estimate_tokens).text


# Browsing


def _understand(prompt: Prompt) -> str:
    able = [one.value for one in BrowseOption if f"\n{one.value}: " in prompt.instructions]
    option = "rank" if "rank" in able else next(iter(able), "")
    return _json(prompt, subject="fact", option=option, order="forward", query=prompt.query)


def _browse(prompt: Prompt) -> str:
    """Returns what is done with a piece, or with all notes, and what they say."""
    said = passages(prompt.numbered("TEXT") or prompt.numbered("NOTES"))
    share = len(words_together(said, prompt.query)) / max(len(wanted(prompt.query)), 1)
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
    text = " ".join(digest(list(dict.fromkeys(texts)), prompt.limit, prompt.query))
    quotes = [{"chunk": one.at[0], "words": one.text} for one in found]
    sources = sorted({int(one.at[0]) for one in found})
    return _json(prompt, action=SAID[action], text=text, quotes=quotes, sources=sources)


#: What answers each template, by its name without its version.
REPLIES: dict[str, Callable[[Prompt], str]] = {
    "prism.revise": revise,
    # It repeats nothing that it has noted: there is nothing to tidy.
    **dict.fromkeys(("prism.consolidate", "prism.consolidate-part"), lambda _: '{"changes": []}'),
    **dict.fromkeys(("prism.answer", "state.answer", "whole.answer"), _answer),
    **dict.fromkeys(("state.compress", "state.episode"), _vector),
    **dict.fromkeys(("tree.summarize", "tree.compress"), _summary),
    **dict.fromkeys(("tree.remember", "browse.condense", "baseline.carry"), _condensed),
    **dict.fromkeys(("tree.guess", "browse.guess"), _guess),
    **dict.fromkeys(("browse.piece", "browse.close", "browse.read"), _browse),
    "schema.generate": lambda _: _SCHEMA,
    "answer.shape": _shape,
    "search.rerank": _rerank,
    "tree.triage": _triage,
    "tree.leaf": _leaf,
    "tree.merge": _merge,
    "browse.understand": _understand,
    "baseline.read": lambda prompt: _found(prompt, "TEXT") or NO_ANSWER,
}
