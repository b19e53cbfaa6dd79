from palimpsest.v1 import errors_pb2
from service.domain.values.errors import PalimpsestError
from service.domain.values.reasons import Reason
from service.rpc.errors import CODES, code_of


def test_the_reasons_are_those_of_the_proto() -> None:
    prefix = "ERROR_REASON_"
    proto = {name.removeprefix(prefix) for name in list(errors_pb2.ErrorReason.keys())}
    assert {reason.value for reason in Reason} == proto - {"UNSPECIFIED"}


def test_every_error_has_a_code_of_its_own() -> None:
    for kind in PalimpsestError.__subclasses__():
        assert kind in dict(CODES), kind
    assert code_of(PalimpsestError(Reason.INTERNAL, "x")).name == "INTERNAL"
