"""The figures that the guide to trees gives are those of the code."""

import re

from buf.validate import validate_pb2

from palimpsest import TreeSettings
from palimpsest.v1 import answer_service_pb2, memories_pb2
from service.cli.tree import MAX_DRAWN
from service.domain.tree.spec import TreeSpec
from service.rpc.convert.specs import tree_message
from service.rpc.pages import MAX_PAGE_SIZE, PAGE_BYTES
from service.rpc.tree_service import TEXT_BYTES
from service.usecases.tree.outline import MAX_SUMMARY_BYTES
from tests import ROOT

PAGE = (ROOT / "docs" / "guides" / "trees.md").read_text()
MIB = 1024 * 1024


def rows() -> dict[str, list[str]]:
    found = (re.split(r" \| ", line.strip("| ")) for line in PAGE.splitlines() if line[:2] == "| ")
    return {name.strip("`"): rest for name, *rest in found}


def test_the_settings_are_those_of_a_tree() -> None:
    said = rows()
    defaults = TreeSpec()
    numbers = ("segment_tokens", "max_children", "summary_tokens", "working_memory_tokens")
    for name in numbers:
        field = memories_pb2.TreeSpec.DESCRIPTOR.fields_by_name[name]
        rule = field.GetOptions().Extensions[validate_pb2.field].cel[0].message
        least, most = re.findall(r"\d+", rule)[-2:]
        assert said[name][0] == f"{getattr(defaults, name):,}"
        assert f"{least} to {int(most):,}" in said[name][1]
    assert said["reasoning"][0] == ("on" if defaults.reasoning else "off")
    assert said["working_memory"][0] == f"`{defaults.working_memory}`"
    assert set(TreeSettings.__dataclass_fields__) - set(said) == {"reply_format"}


def test_the_limits_are_those_of_the_code() -> None:
    said = rows()
    assert said["nodes that tree show` draws".replace("tree", "`tree")] == [f"{MAX_DRAWN}"]
    assert said["summaries of an outline together"][0].startswith(f"{MAX_SUMMARY_BYTES // MIB} MiB")
    assert said["text of a page of `GetNodeText"] == [f"{TEXT_BYTES // MIB} MiB"]
    most = f"{MAX_PAGE_SIZE:,} and {PAGE_BYTES // MIB} MiB"
    assert said["nodes of a page of `ListNodes"] == [most]
    asked = answer_service_pb2.NavigationOptions.DESCRIPTOR.fields_by_name
    for name, row in (("hybrid_leaves", "--hybrid N"), ("beam", "--beam N")):
        limit = asked[name].GetOptions().Extensions[validate_pb2.field].int32.lte
        assert f"at most {limit}" in said[row][0]


def test_the_defaults_are_said_by_the_proto_too() -> None:
    """The comments of TreeSpec name the same numbers."""
    proto = (ROOT / "proto/palimpsest/v1/memories.proto").read_text()
    body = proto.partition("message TreeSpec {")[2].partition("\n}\n")[0]
    message = tree_message(TreeSpec())
    for name in ("segment_tokens", "max_children", "summary_tokens", "working_memory_tokens"):
        comment = " ".join(
            body.partition(f"int32 {name} =")[0].rpartition("  // Optional.")[2].split()
        )
        assert f"0 means {getattr(message, name):,}".replace(" // ", " ") in comment.replace(
            "// ", ""
        )
