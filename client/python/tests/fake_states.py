"""A server in this process that takes and gives states by a script."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent import futures
from dataclasses import dataclass, field
from typing import Any

import grpc

from recurve.v1 import inference_pb2 as pb
from recurve.v1 import state_pb2

ID = "0" * 32


@dataclass
class FakeStates:
    """Keeps what Import gets and exports `pieces`. Refuses by the script."""

    pieces: list[bytes] = field(default_factory=list)
    # Export ends with this after its pieces; the first `failures` calls before them.
    code: grpc.StatusCode = grpc.StatusCode.OK
    failures: int = 0
    # Import ends with RESOURCE_EXHAUSTED after this many messages.
    refuse_after: int | None = None
    # Responses of Decode, after which it ends with `decode_code`.
    responses: list[pb.DecodeResponse] = field(default_factory=list)
    decode_code: grpc.StatusCode = grpc.StatusCode.OK

    exports: int = 0
    imports: list[list[state_pb2.ImportStateRequest]] = field(default_factory=list)
    received: threading.Event = field(default_factory=threading.Event)  # a piece
    ended: threading.Event = field(default_factory=threading.Event)  # an import
    commands: list[pb.DecodeRequest] = field(default_factory=list)

    def __enter__(self) -> FakeStates:
        self._server = grpc.server(futures.ThreadPoolExecutor(8))
        state: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
            "Export": grpc.unary_stream_rpc_method_handler(
                self._export,
                state_pb2.ExportStateRequest.FromString,
                state_pb2.ExportStateResponse.SerializeToString,
            ),
            "Import": grpc.stream_unary_rpc_method_handler(
                self._import,
                state_pb2.ImportStateRequest.FromString,
                state_pb2.StateInfo.SerializeToString,
            ),
        }
        decode = grpc.stream_stream_rpc_method_handler(
            self._decode, pb.DecodeRequest.FromString, pb.DecodeResponse.SerializeToString
        )
        self._server.add_generic_rpc_handlers(
            (
                grpc.method_handlers_generic_handler("recurve.v1.State", state),
                grpc.method_handlers_generic_handler("recurve.v1.Inference", {"Decode": decode}),
            )
        )
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop(None).wait()

    def _export(
        self, request: state_pb2.ExportStateRequest, context: grpc.ServicerContext
    ) -> Iterator[state_pb2.ExportStateResponse]:
        self.exports += 1
        if self.exports <= self.failures:
            context.abort(grpc.StatusCode.UNAVAILABLE, "as the script says")
        for piece in self.pieces:
            yield state_pb2.ExportStateResponse(data=piece)
        if self.code != grpc.StatusCode.OK:
            context.abort(self.code, "as the script says")

    def _import(
        self,
        requests: Iterator[state_pb2.ImportStateRequest],
        context: grpc.ServicerContext,
    ) -> state_pb2.StateInfo:
        got: list[state_pb2.ImportStateRequest] = []
        self.imports.append(got)
        # A client that has left looks like one that has sent all: tells neither apart.
        try:
            for request in requests:
                got.append(request)
                if request.data:
                    self.received.set()
                if len(got) == self.refuse_after:
                    context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "as the script says")
        finally:
            self.ended.set()
        name = got[0].options.name if got else ""
        return state_pb2.StateInfo(id=ID, name=name)

    def _decode(
        self, requests: Iterator[pb.DecodeRequest], context: grpc.ServicerContext
    ) -> Iterator[pb.DecodeResponse]:
        self.commands.append(next(requests))
        for response in self.responses:
            yield response
            if response.done and (request := next(requests, None)) is not None:
                self.commands.append(request)
        if self.decode_code != grpc.StatusCode.OK:
            context.abort(self.decode_code, "as the script says")
