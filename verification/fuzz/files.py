"""Files: texts, steps, schemas, datasets and reports that the command line reads, and settings.

They are read from a file in a folder of the process's own, as the command line does.
"""

import json
import random
import tempfile
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from evaluation import datasets
from evaluation.report import Report, ReportError
from palimpsest._splitting import CHUNK_CHARACTERS, split
from service.cli.config import shown
from service.cli.files import read_schema, read_steps, read_text
from service.cli.output import CommandError
from service.settings import reading
from service.settings.deployments import Deployments
from service.settings.files import CONFIG
from service.settings.models import ModelPriceOverrides, ModelSettings
from verification.fuzz.mutations import ODD, json_of, text_of
from verification.fuzz.runs import Broken, Target

_STEPS: tuple[Any, ...] = (
    {"observation": "x", "thought": "y", "action": "z", "metadata": {"k": "v"}},
    {"role": "user", "text": "hello"},
    {"text": "a note"},
)
_STEP_WORDS = ("observation", "thought", "action", "role", "text", "metadata")
_DOCUMENTS: tuple[Any, ...] = (
    {
        "id": "d1",
        "text": "The museum opened in 1903. It is a ship.\n\nAda said so.",
        "questions": [{"q": "When?", "gold": "1903", "options": ["1903", "1904"]}],
    },
    {
        "id": "d2",
        "turns": [{"speaker": "Ada", "text": "It is a ship.", "i": 0}],
        "questions": [{"q": "What?", "golds": ["a ship"], "evidence": {"turn_spans": [[0, 1]]}}],
    },
    {
        "id": "d3",
        "chunks": [{"text": "one", "n": 1}, {"text": "two"}],
        "questions": [{"q": "Which?", "gold": "two", "evidence": {"sections": [2, "1"]}}],
    },
    {
        "id": "d4",
        "steps": [{"observation": "o", "thought": "t", "action": "a"}],
        "questions": [{"q": "Which?", "gold": "o"}],
    },
)
_DOCUMENT_WORDS = (
    *("id", "text", "turns", "chunks", "steps", "questions", "q", "gold", "golds", "options"),
    *("evidence", "sections", "turn_spans", "speaker", "n", "i", "A", "(b)", "9" * 5000, "²", "٣"),
)
_SPENT = {"calls": 1, "input_tokens": 2, "output_tokens": 3}
_HEAD: dict[str, Any] = {"run_id": "r", "settings": {"model": "m"}, "versions": {"python": "3"}}
_REPORTS: tuple[Any, ...] = (
    {
        "format": 2,
        **_HEAD,
        "complete": False,
        "questions": [
            {
                "strategy": "whole",
                "document": "d",
                "number": 1,
                "question": "q",
                "golds": ["a"],
                "options": [],
                "spent": {},
                "walk": None,
            }
        ],
        "builds": [
            {"strategy": "whole", "document": "d", "place": "p", "spent": {}, "seconds": 1.0}
        ],
    },
)
_DEPLOYMENTS: tuple[Any, ...] = (
    [{"name": "a", "model": "openai/x", "api_base": "http://localhost:1", "max_in_flight": 3}],
    [{"name": "a", "model": "openai/x", "api_key_env": "HOME", "tokens_per_second": 3.5}] * 2,
    [{"name": "b/c", "model": "m/x", "litellm_model": "groq/y", "api_key": "secret"}],
)
_DEPLOYMENT_WORDS = (
    *("name", "model", "litellm_model", "api_base", "api_key", "api_key_env", "offline/extractive"),
    *("tokens_per_second", "max_in_flight", "HOME", "NOT_SET_AT_ALL", "https://x"),
)
_SETTINGS: tuple[Any, ...] = (
    {"openai/*": {"seed": 3, "temperature": 0.5, "extra_body": {"top_k": 3}}},
    {"openai/x": {"input_usd_per_million": 1.5, "read": 0.1, "family": "keyed", "max_marks": 4}},
)
_SETTING_WORDS = (
    *("seed", "temperature", "extra_body", "model", "input_usd_per_million", "read", "write", "*"),
    *(
        "output",
        "granularity_tokens",
        "min_tokens",
        "ttl_seconds",
        "family",
        "explicit",
        "max_marks",
    ),
)
_TOML = (
    """# Settings.
listen = "127.0.0.1:50051"
models = ["offline/*", "openai/*"]
database_url = 'postgresql://u:p@db/d'
redis_cluster = true
stop_seconds = 30
model_timeout_seconds = 1e2
[limits]
max_calls = 5_000
[model_prices."openai/*"]
read = 0.1
[model_settings."openai/x"]
seed = 3
extra = {top_k = 3, at = 1979-05-27T07:32:00Z}
""",
    """[[deployments]]
name = "a"
model = "openai/x"
max_in_flight = 3
[[deployments]]
name = "b"
model = "openai/x"
api_key = """
    + '"secret"\n',
    'pool_size = 0x1f\nlog_level = "WARNING"\ndata_dir = "/data"\n',
)
_TOML_WORDS = (
    *(" = ", "[limits]\n", "[[deployments]]\n", "\n", "#", '"', "'''", "inf", "nan", "true", "-"),
    *("listen", "models", "limits", "max_calls", "model_settings.", "extra.", "{a = [", "12:00:00"),
)
_TEXTS = ("One line.\r\nAnother.\n\nA paragraph that goes on and on. " * 9, "{\n  x", "\ufeffa")


@cache
def _folder() -> Path:
    held = tempfile.TemporaryDirectory(prefix="palimpsest-fuzz-")
    _HELD.append(held)
    return Path(held.name)


#: So that folders live as long as the process.
_HELD: list[Any] = []


def _written(raw: bytes) -> Path:
    path = _folder() / "input"
    path.write_bytes(raw)
    return path


def _lines(corpus: Sequence[Any], words: Sequence[Any]) -> Callable[[random.Random], bytes]:
    def make(rng: random.Random) -> bytes:
        lines = [json_of(rng, corpus, words) for _ in range(rng.choice((1, 1, 2, 5)))]
        return _bytes("\n".join(lines), rng)

    return make


def _bytes(text: str, rng: random.Random) -> bytes:
    raw = bytearray(text.encode(errors="replace"))
    if raw and rng.random() < 0.1:
        raw[rng.randrange(len(raw))] = rng.randrange(256)
    return bytes(raw)


def _steps(raw: bytes) -> bool:
    for step in read_steps(str(_written(raw))):
        for text in (step.observation, step.thought, step.action, step.role, step.text):
            text.encode()
        if step.is_empty():
            raise Broken("a step holds something")
    return True


def _text(raw: bytes) -> bool:
    text = read_text(str(_written(raw)))
    pieces = list(split(text))
    if any(not 0 < len(one) <= CHUNK_CHARACTERS or one.isspace() for one in pieces):
        raise Broken("a chunk has text, and no more than it may have")
    if "".join("".join(pieces).split()) != "".join(text.split()):
        raise Broken("chunks are the text")
    return bool(read_schema(str(_written(raw))))


def _dataset(raw: bytes) -> bool:
    for document in datasets.read(_written(raw)):
        for question in document.questions:
            if question.options and not set(question.golds) <= set(question.options):
                raise Broken("right answers are options")
            if any(not 1 <= one <= len(document.chunks) for one in question.evidence):
                raise Broken("evidence has its place in the text")
    return True


def _report(raw: bytes) -> bool:
    Report.resume(_written(raw), _HEAD)
    return True


def _settings(raw: bytes) -> bool:
    path = _written(raw)
    found = reading.read({CONFIG: str(path)})
    if (found.config is None) != bool(found.problems):
        raise Broken("there are settings, or there is what is wrong with them")
    if not all(one.startswith(f"{path}: ") for one in found.problems):
        raise Broken("what is wrong is said with the file")
    if found.config is not None:
        for name, value in found.config:
            json.dumps(shown(name, value))
    return found.config is not None


def _setting(kind: Any) -> Callable[[str], bool]:
    adapter: TypeAdapter[Any] = TypeAdapter(kind)

    def check(text: str) -> bool:
        return bool(adapter.validate_python(text))

    return check


def _made_setting(corpus: Sequence[Any], words: Sequence[Any]) -> Callable[[random.Random], str]:
    return lambda rng: json_of(rng, corpus, words).replace("\0", "").replace("\ud800", "x")


TARGETS: Sequence[Target] = (
    Target(
        name="step-files", make=_lines(_STEPS, _STEP_WORDS), check=_steps, refusals=(CommandError,)
    ),
    Target(
        name="text-files",
        make=lambda rng: _bytes(text_of(rng, _TEXTS, (*ODD, "\n\n", " ", "\r\n")), rng),
        check=_text,
        refusals=(CommandError,),
    ),
    Target(
        name="datasets",
        make=_lines(_DOCUMENTS, _DOCUMENT_WORDS),
        check=_dataset,
        refusals=(datasets.DatasetError,),
    ),
    Target(
        name="reports",
        make=lambda rng: _bytes(json_of(rng, _REPORTS, tuple(_REPORTS[0])), rng),
        check=_report,
        refusals=(ReportError,),
    ),
    Target(
        name="settings-files",
        make=lambda rng: _bytes(text_of(rng, _TOML, (*ODD, *_TOML_WORDS)), rng),
        check=_settings,
        # Each input is held against every setting.
        calls=1_000_000,
    ),
    Target(
        name="deployments",
        make=_made_setting(_DEPLOYMENTS, _DEPLOYMENT_WORDS),
        check=_setting(Deployments),
        refusals=(ValidationError,),
    ),
    Target(
        name="model-prices",
        make=_made_setting(_SETTINGS, _SETTING_WORDS),
        check=_setting(ModelPriceOverrides),
        refusals=(ValidationError,),
    ),
    Target(
        name="model-settings",
        make=_made_setting(_SETTINGS, _SETTING_WORDS),
        check=_setting(ModelSettings),
        refusals=(ValidationError,),
    ),
)
