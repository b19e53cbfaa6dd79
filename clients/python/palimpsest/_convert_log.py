"""The log: acks, from the proto's messages."""

from palimpsest._values_log import Ack
from palimpsest.v1 import session_service_pb2


def ack(message: session_service_pb2.AppendChunksResponse.Ack) -> Ack:
    """Returns an ack."""
    return Ack(
        producer_sequence=message.through_producer_sequence,
        position=message.through_position,
        read_token=message.read_token,
    )
