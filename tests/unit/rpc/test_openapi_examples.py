"""The examples of the OpenAPI document are requests that the service accepts."""

import protovalidate
import pytest
from google.protobuf import json_format, message_factory

from service.rpc.pipeline import REGISTER
from tests.openapi import EXAMPLES

METHODS = {method.name: method for _, service in REGISTER.values() for method in service.methods}


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_is_a_valid_request(name: str) -> None:
    kind = message_factory.GetMessageClass(METHODS[name].input_type)
    protovalidate.validate(json_format.ParseDict(dict(EXAMPLES[name]), kind()))
