"""TreeService."""

from palimpsest.v1 import tree_service_pb2_grpc
from service.rpc.tree_sealing import TreeSealing
from service.usecases.tree.sealing import Sealer


class TreeService(TreeSealing, tree_service_pb2_grpc.TreeServiceServicer):
    """See tree_service.proto."""

    def __init__(self, sealer: Sealer) -> None:
        self._sealer = sealer
