"""What the model server of a campaign says: the serial always, and what each flow can read."""

from service.domain.prism.revisions import parse_reply
from service.domain.prism.spec import PrismSpec
from verification.chaos.clients import SCHEMA
from verification.chaos.model_server import reply_text

REVISE = '… {"changes": [...]} …\n[MEMORY]\n{}\n[TEXT]\n<<<data a\ncax7 the river\n>>>data a\n'


def test_a_step_adds_every_chunk_by_its_name() -> None:
    schema = PrismSpec(schema_source=SCHEMA).schema()
    revision = parse_reply(reply_text(REVISE, 12), schema, {"topics": {}, "edits": {}})
    assert [(str(one.path), one.value) for one in revision.amendments] == [
        ("$['topics']['cax7']", "[s12]")
    ]


def test_every_other_prompt_gets_its_serial() -> None:
    prompts = (
        "…\n[LENGTH]\n…\n[TEXT]\n<<<data a\ncax7\n>>>data a\n",
        "…\n[LENGTH]\n…\n[STEPS]\nStep 1:\n",
        "…[ANSWER]\n…\n[PATHS]\n…\n[MEMORY]\n{}\n[QUERY]\n",
        "…[ANSWER]\n…\n[QUOTES]\n…",
        '… {"changes": [...]} …\n[SIZE]\n',
    )
    for prompt in prompts:
        assert "[s3]" in reply_text(prompt, 3)
