"""Custom resources against the definitions that their operators are installed with."""

from functools import cache
from typing import Any

import yaml  # type: ignore[import-untyped]
from jsonschema import Draft202012Validator

from tests import ROOT

THIRD_PARTY = ROOT / "third_party"


@cache
def _definitions() -> dict[tuple[str, str], dict[str, Any]]:
    """Returns the schema of each version of each kind, which allows no fields but its own."""
    found = {}
    for path in (*THIRD_PARTY.glob("keda/*.yaml"), *THIRD_PARTY.glob("prometheus-operator/*.yaml")):
        spec = yaml.safe_load(path.read_text())["spec"]
        for version in spec["versions"]:
            schema = _strict(version["schema"]["openAPIV3Schema"])
            schema["properties"]["metadata"] = {"type": "object"}
            found[f"{spec['group']}/{version['name']}", spec["names"]["kind"]] = schema
    return found


def _strict(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_strict(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    strict = {key: _strict(value) for key, value in schema.items()}
    if schema.get("x-kubernetes-int-or-string") is True:
        strict |= {"type": ["integer", "string"]}
        strict.pop("anyOf", None)
    # "properties" may also be the name of a field; then it has no type.
    open_ended = "additionalProperties" in schema or schema.get(
        "x-kubernetes-preserve-unknown-fields"
    )
    if schema.get("type") == "object" and "properties" in schema and not open_ended:
        strict["additionalProperties"] = False
    return strict


def problems(manifest: dict[str, Any]) -> list[str]:
    """Returns what is wrong with it. Raises KeyError for a kind that no definition is kept of."""
    schema = _definitions()[manifest["apiVersion"], manifest["kind"]]
    return [one.message for one in Draft202012Validator(schema).iter_errors(manifest)]


def is_custom(manifest: dict[str, Any]) -> bool:
    """Returns whether it is of an operator's own kind, and not one of Kubernetes'."""
    group = manifest["apiVersion"].rpartition("/")[0]
    return "." in group and not group.endswith(".k8s.io")
