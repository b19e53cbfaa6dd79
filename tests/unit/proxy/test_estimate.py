"""What a request may cost: more than tokenizers make of it, and not many times more."""

import base64
import hashlib
import json
import random
from pathlib import Path
from typing import Any

import pytest

from service.llm.providers.facts import tokenizer_of
from service.proxy.conversation import CHAT, MESSAGES, RESPONSES
from service.proxy.estimate import (
    FRAME_TOKENS,
    IMAGE_TOKENS,
    LONGEST_PROMPT_TOKENS,
    ORIGINAL_IMAGE_TOKENS,
    OWN_TOOL_TOKENS,
    TOOLS_TOKENS,
    most_tokens,
    request_tokens,
)

ROOT = Path(__file__).parents[3]
CHANCE = random.Random(7)
#: Texts that programs send, each of some thousand bytes.
USUAL = {
    "prose": (ROOT / "README.md").read_text()[:20_000],
    "code": (ROOT / "service/proxy/application.py").read_text(),
    "JSON": json.dumps(json.loads((ROOT / "service/rpc/http/openapi.json").read_text()))[:20_000],
    "log": "2026-11-28T10:08:48.123Z INFO request id=9f8a7b6c GET /v1/x?beta=true 200 12ms\n" * 50,
    "German": "Die Würde des Menschen ist unantastbar. Sie zu achten und zu schützen ist Pflicht. "
    * 9,
}
ODD = {
    "hex": hashlib.sha512(b"x").hexdigest() * 20,
    "numbers": json.dumps([CHANCE.random() for _ in range(300)]),
    "one word": "".join(CHANCE.choices("abcdefghijklmnopqrstuvwxyz", k=3000)),
    "signs": "".join(CHANCE.choices("!@#$%^&*()[]{};:'\",./<>?", k=3000)),
    "Russian": "Все люди рождаются свободными и равными в своем достоинстве и правах. " * 9,
    "Chinese": "人人生而自由,在尊严和权利上一律平等。他们赋有理性和良心。" * 9,
    "Hindi": "सभी मनुष्यों को गौरव और अधिकारों के मामले में जन्मजात स्वतन्त्रता प्राप्त है। " * 9,
    "Georgian": "ყველა ადამიანი იბადება თავისუფალი და თანასწორი თავისი ღირსებითა. " * 9,
    "Armenian": "Բոլոր մարդիկ ծնվում են ազատ ու հավասար իրենց իրավունքներով։ " * 9,
    "rare": "".join(chr(CHANCE.randint(0x20000, 0x2A000)) for _ in range(300)),
    "emoji": "😀🎉👩‍👩‍👧‍👦🏳️‍🌈🧿🪬🫠" * 20,
}
TOKENIZERS = {name: tokenizer_of(name) for name in ("openai/gpt-5", "openai/gpt-4")}


@pytest.mark.parametrize("model", TOKENIZERS)
@pytest.mark.parametrize("kind", [*USUAL, *ODD])
def test_no_tokenizer_makes_more_of_a_text(kind: str, model: str) -> None:
    count = TOKENIZERS[model]
    assert count is not None
    text = {**USUAL, **ODD}[kind]
    assert count(text) <= most_tokens(text) <= len(text.encode())


@pytest.mark.parametrize("kind", USUAL)
def test_usual_texts_are_not_held_at_twice_their_tokens(kind: str) -> None:
    count = TOKENIZERS["openai/gpt-5"]
    assert count is not None
    assert most_tokens(USUAL[kind]) < 2 * count(USUAL[kind])


def test_encoded_text_is_about_what_it_is() -> None:
    text = base64.b64encode(CHANCE.randbytes(6000)).decode()
    count = TOKENIZERS["openai/gpt-5"]
    assert count is not None
    assert 0.85 * count(text) < most_tokens(text) < 1.5 * count(text)


def tokens(body: dict[str, Any], form: Any = CHAT, window: int | None = None) -> int:
    """Returns the estimate of a request, with a token for each character of its JSON."""
    return request_tokens(form, body, len, window=window)


def chat(part: dict[str, Any]) -> dict[str, Any]:
    """Returns a request with one part."""
    return {"model": "m", "messages": [{"role": "user", "content": [part]}]}


DATA = "A" * 100_000


@pytest.mark.parametrize(
    ("part", "most"),
    [
        ({"type": "image_url", "image_url": {"url": f"data:image/png;base64,{DATA}"}}, 4_000),
        ({"type": "image", "source": {"type": "base64", "data": DATA}}, 4_000),
        ({"type": "input_image", "image_url": "https://x/y.png"}, 4_000),
        ({"type": "image_url", "image_url": {"detail": "original"}}, ORIGINAL_IMAGE_TOKENS),
        ({"type": "file", "file": {"file_data": DATA}}, len(DATA)),
        ({"type": "document", "source": {"type": "base64", "data": DATA}}, len(DATA)),
        ({"type": "input_audio", "input_audio": {"data": DATA}}, len(DATA)),
        # What the provider has may be of any length.
        ({"type": "file", "file": {"file_id": "f1"}}, LONGEST_PROMPT_TOKENS),
        ({"type": "document", "source": {"type": "url", "url": "u"}}, LONGEST_PROMPT_TOKENS),
    ],
)
def test_what_is_no_text_costs_what_it_may_cost(part: dict[str, Any], most: int) -> None:
    empty = tokens(chat({}))
    assert tokens(chat(part)) == empty + most


def test_images_are_counted_by_model_and_also_within_results_of_tools() -> None:
    image = {"type": "image", "source": {"type": "base64", "data": DATA}}
    result = {"type": "tool_result", "tool_use_id": "t", "content": [image, image]}
    body = {**chat(result), "model": "claude-opus-5"}
    assert 2 * IMAGE_TOKENS["claude"] < tokens(body, MESSAGES) < 2 * IMAGE_TOKENS["claude"] + 300
    body = {**chat(image), "model": "openai/gpt-4o-mini"}
    assert tokens(body) > IMAGE_TOKENS["gpt-4o-mini"]


def test_a_document_of_text_is_text() -> None:
    part = {"type": "document", "source": {"type": "text", "data": "word " * 100}}
    assert 500 < tokens(chat(part), MESSAGES) < 800


def test_tools_of_the_provider_have_prompts_of_their_own() -> None:
    mine = {"type": "function", "function": {"name": "f", "parameters": {}}}
    theirs = {"type": "web_search_20250305", "name": "web_search"}
    bare = tokens({"tools": []})
    with_mine = tokens({"tools": [mine]})
    assert with_mine == bare + len(json.dumps(mine)) + TOOLS_TOKENS
    assert (
        tokens({"tools": [theirs]})
        == bare + len(json.dumps(theirs)) + TOOLS_TOKENS + OWN_TOOL_TOKENS
    )


def test_sealed_thoughts_count_as_the_text_within() -> None:
    part = {"type": "thinking", "thinking": "", "signature": "A" * 4000}
    assert tokens(chat(part)) < 1300


@pytest.mark.parametrize("name", ["previous_response_id", "conversation", "prompt"])
def test_what_the_provider_has_stored_may_fill_the_window(name: str) -> None:
    body = {"model": "m", "input": "Hi", name: "x"}
    assert tokens(body, RESPONSES, 200_000) == 200_000
    assert tokens(body, RESPONSES) == LONGEST_PROMPT_TOKENS
    assert tokens({"model": "m", "input": "Hi"}, RESPONSES) < FRAME_TOKENS + 40


def test_no_prompt_is_longer_than_the_window() -> None:
    assert tokens(chat({"type": "text", "text": "word " * 10_000}), CHAT, 8000) == 8000
