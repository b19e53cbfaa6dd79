"""Classifies a provider's errors, and makes its own words safe to show.

Providers have different statuses for the same thing: "request too large" may be a 429 that never
passes, an account without credit a 400. So known words decide.
"""

import ast
import html
import json
import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from enum import StrEnum
from functools import partial
from http.client import responses
from typing import Any

from service.domain.prompting.faults import ADVICE, PHRASES, Fault
from service.llm.providers.delays import delay_seconds
from service.llm.providers.native import NativeAnswer
from service.llm.providers.streams import BrokenStream
from service.settings.config import Config

#: Characters of a provider's words that are kept.
MAX_WORDS_CHARACTERS = 300
#: Packages that raise errors of a provider or the network.
_OUTSIDE = {"openai", "litellm", "httpx", "httpcore", "aiohttp"}
#: Characters of them that are searched.
_LOOKED_AT = 4000
#: Statuses of a timeout.
_TIMEOUTS = frozenset({408, 504})
#: Statuses below 500 that may pass: timeout, conflict, too early, too many requests.
_PASSING = frozenset({408, 409, 425, 429})
#: How many causes of an error are searched.
MAX_CAUSES = 10
#: Text of the prompt that a provider repeats is found by pieces of so many characters.
_PIECE = 16
_STRIDE = 8

#: How the names of variables end whose values are secrets.
_SECRET_NAMES = ("_KEY", "_TOKEN", "_SECRET", "_PASSWORD")
#: Shorter ones would be found in many words.
MIN_SECRET_CHARACTERS = 6

REMOVED = "[removed]"


class ModelFailure(Exception):
    """A call without a reply; the message is one sentence without prompt text."""

    def __init__(
        self,
        message: str,
        *,
        retryable: bool,
        retry_after_seconds: float | None = None,
        fault: Fault | None = None,
        waits_for: str | None = None,
        longest_pause_seconds: float | None = None,
    ) -> None:
        """`retryable`: whether another try may succeed at once.

        `waits_for`: the model whose circuit is open, if no call was made because of that.
        `longest_pause_seconds`: before another try, unless the provider asks for more.
        """
        super().__init__(message)
        self.retryable = retryable
        self.retry_after_seconds = retry_after_seconds
        self.fault = fault or (Fault.FAILING if retryable else Fault.CONTENT_REFUSED)
        self.waits_for = waits_for
        self.longest_pause_seconds = longest_pause_seconds

    @property
    def is_deployment(self) -> bool:
        """Whether the deployment is the cause, not the step that made the call."""
        return self.waits_for is not None or self.fault.is_deployment


#: What providers write, and what it means; the first match counts.
_WORDINGS: Sequence[tuple[Fault, re.Pattern[str]]] = tuple(
    (fault, re.compile(pattern, re.IGNORECASE))
    for fault, pattern in (
        (
            Fault.QUOTA_EXHAUSTED,
            r"insufficient[_ ]quota|exceeded your current quota|credit balance|insufficient"
            r" (balance|credits?)|billing (hard )?limit|out of credits|payment required",
        ),
        (
            Fault.TOO_LONG,
            r"context[_ ]length|context window|maximum context|prompt is too long|too many"
            r" (input )?tokens|reduce the length|exceed_context_size|input is too long|request too"
            r" large|string too long|tokens? in (the )?request exceeds?|maximum prompt length"
            r"|exceeds the maximum number of tokens",
        ),
        (
            Fault.KEY_REFUSED,
            r"api[_ ]key (is )?(not valid|invalid|expired)|invalid[_ ]api[_ ]key|incorrect api"
            r" key|API_KEY_INVALID|invalid authentication|missing .{0,40}api[_ ]key|api_key client"
            r" option must be set",
        ),
        (
            Fault.CONTENT_REFUSED,
            r"content[_ ](filter|policy)|invalid_prompt|safety system|flagged|moderation"
            r"|usage (polic|guideline)|content exists risk",
        ),
        (
            Fault.MODEL_UNKNOWN,
            r"model_not_found|model .{1,200} (does not exist|not found)|no such model"
            r"|LLM Provider NOT provided",
        ),
    )
)


#: Gemini writes "quota" also for a limit that passes within a minute.
_OF_A_MINUTE = re.compile(r"PerMinute|per minute|retryDelay", re.IGNORECASE)
#: Bedrock writes "Too many tokens, please wait" for a limit that passes.
_TOO_LARGE = re.compile(r"request too large|tokens? in (the )?request exceeds?", re.IGNORECASE)


def failure_of(
    litellm: Any,
    error: Exception,
    model: str,
    *,
    native: NativeAnswer | None = None,
    secrets: Collection[str] = (),
    prompt: Sequence[str] = (),
) -> Exception:
    """Returns the failure for an error; an error that is no provider's is returned as it is.

    `native`: the provider's answer, if it was heard. The message has the provider's words, bounded,
    without `secrets` and text of the `prompt`.
    """
    native = native or NativeAnswer()
    kinds = litellm.exceptions
    shown = partial(shown_words, secrets=secrets, prompt=prompt)
    # The provider's own status and words; litellm changes some of both.
    status = native.error_status
    if status is not None:
        text = without_echo(f"{native.error} {error}"[:_LOOKED_AT], prompt)
        said = shown(_message(native.error) or responses.get(status, ""))
        is_late = status in _TIMEOUTS
        fault = Fault.UNREACHABLE if is_late else _fault(litellm, error, status, model, text)
        return _failure(fault, model, said, f"status {native.status}", delay_seconds(native, error))
    if native.is_whole and not native.is_json:
        said = shown(_page(native.error))
        return no_reply(model, said or "the body is empty", f"status {native.status}, no JSON")
    is_odd = native.is_whole and not native.has_known_end
    if is_odd and isinstance(error, kinds.openai.OpenAIError | BrokenStream):
        return no_reply(model, label=f"status {native.status}")
    if isinstance(error, BrokenStream):
        return _failure(Fault.FAILING, model, str(error))
    # Any other error meanwhile is a defect, not an outage.
    if native.asked and not native.is_whole and _is_outside(error):
        said = shown(_ADDRESS.sub("", native.lost))
        label = "its answer broke off" if native.status else "no connection"
        label = "no answer" if _timed_out(error) else label
        return _failure(Fault.UNREACHABLE, model, said, label)
    unreached = isinstance(error, kinds.APIConnectionError | kinds.Timeout | TimeoutError)
    missing = _missing_package(error) if unreached or isinstance(error, ImportError) else None
    if missing is not None:
        return _failure(Fault.PACKAGE_MISSING, model, missing)
    # The base of all errors that litellm raises for a provider.
    if not unreached and not isinstance(error, kinds.openai.OpenAIError):
        return error
    status = getattr(error, "status_code", None)
    # Repeated text of the prompt says nothing about the error.
    text = without_echo(f"{getattr(error, 'code', None) or ''} {error}"[:_LOOKED_AT], prompt)
    said = shown(_words_of(error))
    if not unreached:
        # For embeddings litellm reports a refused connection as a status 500 that no server sent.
        reported = (kinds.openai.APIConnectionError,)
        unreached = any(isinstance(cause, reported) for cause in _causes(error))
    if unreached:
        # litellm invents a status if there is none.
        fault, label = Fault.UNREACHABLE, "no answer" if _timed_out(error) else "no connection"
    else:
        fault = _fault(litellm, error, status, model, text)
        label = f"{type(error).__name__}, status {status}"
    return _failure(fault, model, said, label, delay_seconds(native, error))


def no_reply(model: str, said: str = "", label: str = "") -> ModelFailure:
    """Returns the failure of a response without reply and error."""
    failure = _failure(Fault.NO_REPLY, model, said, label)
    # Some servers answer like this while they load, or filter a prompt.
    failure.retryable = True
    return failure


#: aiohttp writes an object where it means a protocol.
_ADDRESS = re.compile(r" ssl:(?:<[^>]*>|\w+)")

#: How providers refuse the schema of a reply, and not the text.
_FORM = re.compile(
    r"response_format|json[_ ]?schema|output_format|output_?config|tool_choice|structured output"
    r"|schema.{0,200}(grammar|constraint|states)|grammar.{0,200}(schema|too large)"
    r"|json_validate_failed|union types|optional parameters",
    re.IGNORECASE | re.DOTALL,
)
#: The same for a system message; templates of open models raise it.
_SYSTEM = re.compile(
    r"system (role|message|prompt|instruction)s?\b.{0,40}\b(not|un)\s?(be )?(supported|allowed"
    r"|enabled)|developer instruction is not enabled|not support .{0,20}system"
    r"|roles must alternate",
    re.IGNORECASE | re.DOTALL,
)
#: Groq's word for one reply that did not fit the schema; the next one may.
_OF_ONE_REPLY = "json_validate_failed"


class RefusedFeature(StrEnum):
    """The part of a request's form that a provider refuses."""

    #: The schema of the reply.
    SCHEMA = "schema"
    #: The schema of this reply only.
    SCHEMA_ONCE = "schema once"
    #: The system message.
    SYSTEM = "system message"


def refused_form(
    error: Exception, prompt: Sequence[str], native: NativeAnswer
) -> RefusedFeature | None:
    """Returns the part of the form that an error refuses; None if it is about something else."""
    heard = native.error_status
    status = heard or getattr(error, "status_code", None)
    if status not in (400, 422, 500):
        return None
    named = " ".join(str(getattr(error, name, None) or "") for name in ("code", "param"))
    said = native.error if heard else f"{named} {error}"
    text = without_echo(said[:_LOOKED_AT], prompt)
    if _SYSTEM.search(text):
        return RefusedFeature.SYSTEM
    if status == 500 or not _FORM.search(text):
        return None
    return RefusedFeature.SCHEMA_ONCE if _OF_ONE_REPLY in text else RefusedFeature.SCHEMA


def _failure(
    fault: Fault, model: str, said: str, label: str = "", retry_after: float | None = None
) -> ModelFailure:
    what = f"{model} {PHRASES[fault]}" + (f" ({label})" if label else "")
    advice = ADVICE[fault]
    message = what + (f": {said}" if said else "") + (f"; {advice}" if advice else "")
    return ModelFailure(
        message,
        retryable=fault.passes,
        retry_after_seconds=retry_after if fault.is_deployment else None,
        fault=fault,
    )


def _fault(litellm: Any, error: Exception, status: object, model: str, text: str) -> Fault:
    kinds = litellm.exceptions
    if isinstance(error, kinds.ContextWindowExceededError):
        return Fault.TOO_LONG
    if isinstance(error, kinds.ContentPolicyViolationError):
        return Fault.CONTENT_REFUSED
    said = next((fault for fault, pattern in _WORDINGS if pattern.search(text)), None)
    if not isinstance(status, int) or status >= 500:
        # Some servers answer this to a prompt that does not fit.
        return said if said is Fault.TOO_LONG else Fault.FAILING
    if status == 429:
        # A temporary limit, a quota, or a request that is too large.
        if said is Fault.QUOTA_EXHAUSTED and not _OF_A_MINUTE.search(text):
            return said
        return Fault.TOO_LONG if _TOO_LARGE.search(text) else Fault.RATE_LIMITED
    if said is not None:
        return said
    if status == 413:
        return Fault.TOO_LONG
    if status in _PASSING:
        return Fault.FAILING
    if status in (401, 403, 407):
        return Fault.KEY_REFUSED
    if status == 402:
        return Fault.QUOTA_EXHAUSTED
    if status == 404 or (
        isinstance(error, kinds.BadRequestError) and not has_provider(litellm, model)
    ):
        return Fault.MODEL_UNKNOWN
    return Fault.REQUEST_REFUSED


def _timed_out(error: Exception) -> bool:
    return isinstance(error, TimeoutError) or "Timeout" in type(error).__name__


def has_provider(litellm: Any, model: str) -> bool:
    """Returns whether litellm knows the provider in a model's name."""
    try:
        litellm.get_llm_provider(model=model)
    except litellm.exceptions.BadRequestError:
        return False
    return True


def _is_outside(error: Exception) -> bool:
    """Returns whether an error is a provider's or the network's."""
    package = type(error).__module__.partition(".")[0]
    return isinstance(error, OSError) or package in _OUTSIDE


def _missing_package(error: BaseException) -> str | None:
    for cause in (error, *_causes(error)):
        if isinstance(cause, ImportError):
            return str(cause).splitlines()[0][:MAX_WORDS_CHARACTERS] if str(cause) else "a package"
    return None


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yields the causes and contexts of an error, from the last to the first."""
    cause = error.__cause__ or error.__context__
    for _ in range(MAX_CAUSES):
        if cause is None:
            return
        yield cause
        cause = cause.__cause__ or cause.__context__


#: What litellm puts before a provider's words.
_PREFIXES = re.compile(
    r"^(?:(?:litellm\.)?\w{1,60}(?:Error|Exception)\s*[:-]?\s*){1,5}(?=[A-Z<{\s]|\w{1,60}:|$)"
)
#: What looks like a secret.
_SECRETS = re.compile(
    r"\b(?:sk|pk|rk|key|gsk|xai|hf|ghp|AKIA|AIza)[-_A-Za-z0-9*.]{8,}"
    r"|(?<=//)[^/\s@]+(?=@)|(?<=[?&]key=)[^&\s]+|(?i:bearer\s+\S+)"
    r"|(?i:(?:api[-_ ]?key|token|secret|password)\s*[=:]\s*)\S+"
    r"|(?<![A-Za-z0-9+/_-])(?=[A-Za-z0-9+/_-]*[0-9])(?=[A-Za-z0-9+/_-]*[A-Za-z])[A-Za-z0-9+/_-]{40,}"
)


#: How fields are named whose values are secrets.
_NAMES_SECRET = re.compile(r"(?i)key|token|secret|password|auth|credential")


def secrets_of(config: Config) -> frozenset[str]:
    """Returns what no message may contain: our keys, and those in providers' variables."""
    ours = (config.model_api_key, config.embedding_api_key)
    keys = [key.get_secret_value() for key in ours if key is not None]
    keys += [key for one in config.deployments for key in one.secrets()]
    keys += [value for name, value in os.environ.items() if name.upper().endswith(_SECRET_NAMES)]
    for settings in config.model_settings.values():
        keys += _secret_values(settings.model_dump())
    return frozenset(key for key in keys if len(key) >= MIN_SECRET_CHARACTERS)


def _secret_values(value: Any, name: str = "") -> Iterator[str]:
    """Yields the texts of fields that are sent to providers, and named as secrets are."""
    if isinstance(value, Mapping):
        for key, one in value.items():
            yield from _secret_values(one, str(key))
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _secret_values(one, name)
    elif isinstance(value, str) and _NAMES_SECRET.search(name):
        yield value


def shown_words(text: str, *, secrets: Collection[str], prompt: Sequence[str]) -> str:
    """Returns words from outside in one line, bounded, without secrets or the prompt's text."""
    for secret in secrets:
        text = text.replace(secret, REMOVED)
    text = text[:_LOOKED_AT]
    text = _SECRETS.sub(REMOVED, text)
    text = without_echo(text, prompt)
    line = " ".join(text.split())
    line = "".join(char if char.isprintable() else "?" for char in line)
    if len(line) > MAX_WORDS_CHARACTERS:
        line = line[:MAX_WORDS_CHARACTERS] + "…"
    return line.rstrip(".")


#: Words of litellm's sentences about itself.
_CHATTER = re.compile(r"litellm|model[_ ]?group|fallback", re.IGNORECASE)


def _words_of(error: Exception) -> str:
    """Returns the provider's words, without litellm's."""
    text = _PREFIXES.sub("", str(error)[:_LOOKED_AT].strip())
    sentences = re.split(r"\n+|(?<=[.!?])\s+", text)
    text = " ".join(one for one in sentences if not _CHATTER.search(one))
    return _message(text)


def _message(text: str) -> str:
    """Returns the message in a JSON body, wherever the provider puts it, else the text."""
    text = _PREFIXES.sub("", text.strip())
    start = text.find("{")
    if start >= 0:
        found = _message_in(_body(text[start:]))
        if found:
            return found
    return _page(text)


#: What an HTML page does not show, and its title.
_HIDDEN = re.compile(r"<(script|style|head)\b.*?(</\1>|$)", re.IGNORECASE | re.DOTALL)
_TITLE = re.compile(r"<title[^>]*>(.*?)</title>", re.IGNORECASE | re.DOTALL)
_TAG = re.compile(r"<[^<>]{0,1000}>")


def _page(text: str) -> str:
    """Returns the text of a proxy's HTML page; other text as it is."""
    if not re.match(r"\s*<(?:!doctype|html|head|body|center|h1|\?xml)", text, re.IGNORECASE):
        return text
    title = _TITLE.search(text)
    return html.unescape(_TAG.sub(" ", title[1] if title else _HIDDEN.sub(" ", text)))


def _body(text: str) -> object:
    """Returns the JSON or Python value at the beginning of a text; None without one."""
    try:
        return json.JSONDecoder().raw_decode(text)[0]
    except (ValueError, RecursionError):
        pass
    try:
        return ast.literal_eval(text[: text.rindex("}") + 1])
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return None


def _message_in(body: object) -> str | None:
    for _ in range(4):
        if isinstance(body, list):
            # One error for each field of a request.
            return "; ".join(_of_field(one) for one in body if isinstance(one, dict)) or None
        if not isinstance(body, dict):
            return body if isinstance(body, str) else None
        metadata = body.get("metadata")
        raw = metadata.get("raw") if isinstance(metadata, dict) else None
        if isinstance(raw, str) and raw.strip():
            # The provider's words; OpenRouter's own are "Provider returned error".
            return _message(raw)
        names = ("message", "Message", "error", "detail")
        body = next((body[name] for name in names if body.get(name)), None)
    return None


def _of_field(one: dict[str, Any]) -> str:
    at = one.get("loc")
    place = ".".join(str(part) for part in at) if isinstance(at, list) else ""
    return ": ".join(part for part in (place, str(one.get("msg") or "")) if part)


#: What a provider quotes.
_QUOTED = re.compile(r"([\"'`])([^\"'`]{1,}?)\1")


def without_echo(text: str, prompt: Sequence[str]) -> str:
    """Returns `text` without what it quotes of the prompt, or repeats in 24 characters."""
    whole = "\n".join(prompt)
    kept: list[str] = []
    start = at = 0
    while at + _PIECE <= len(text):
        found = whole.find(text[at : at + _PIECE])
        if found < 0:
            at += _STRIDE
            continue
        first, last, left, right = at, at + _PIECE, found, found + _PIECE
        while first > start and left > 0 and text[first - 1] == whole[left - 1]:
            first, left = first - 1, left - 1
        while last < len(text) and right < len(whole) and text[last] == whole[right]:
            last, right = last + 1, right + 1
        kept += [text[start:first], "[text]"]
        start = at = last
    text = "".join([*kept, text[start:]])
    return _QUOTED.sub(lambda found: "[text]" if found[2] in whole else found[0], text)
