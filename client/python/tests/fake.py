"""A server in this process that answers Generate by a script."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent import futures
from dataclasses import dataclass, field
from typing import Any

import grpc

from recurve.v1 import control_pb2
from recurve.v1 import inference_pb2 as pb

GOOD = grpc.StatusCode.OK


@dataclass
class Try:
    """How one call goes: tokens 0 to n - 1, then a status."""

    tokens: int = 0
    code: grpc.StatusCode = GOOD
    pushback: str | None = None
    change: int | None = None  # the id at this index is another one
    claim: int | None = None  # how many tokens the end claims
    hang: bool = False  # no end, until the client has left
    finish: bool = False  # the whole answer, then the status


@dataclass
class FakeServer:
    """Answers call number i by tries[i], and the last try for all later ones."""

    tries: list[Try]
    requests: list[pb.GenerateRequest] = field(default_factory=list)
    metadata: list[dict[str, Any]] = field(default_factory=list)
    credentials: grpc.ServerCredentials | None = None

    def __enter__(self) -> FakeServer:
        # Takes more metadata than the real one, so that a script can refuse them.
        self._server = grpc.server(
            futures.ThreadPoolExecutor(8), options=[("grpc.max_metadata_size", 64 << 10)]
        )
        handler = grpc.unary_stream_rpc_method_handler(
            self._generate, pb.GenerateRequest.FromString, pb.GenerateEvent.SerializeToString
        )
        info = grpc.unary_unary_rpc_method_handler(
            self._info,
            control_pb2.GetModelInfoRequest.FromString,
            control_pb2.ModelInfo.SerializeToString,
        )
        self._server.add_generic_rpc_handlers(
            (
                grpc.method_handlers_generic_handler("recurve.v1.Inference", {"Generate": handler}),
                grpc.method_handlers_generic_handler("recurve.v1.Control", {"GetModelInfo": info}),
            )
        )
        where = "127.0.0.1:0"
        port = (
            self._server.add_insecure_port(where)
            if self.credentials is None
            else self._server.add_secure_port(where, self.credentials)
        )
        self.address = f"127.0.0.1:{port}"
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop(None).wait()

    def _next_try(self, request: Any, context: grpc.ServicerContext) -> Try:
        self.requests.append(request)
        self.metadata.append({k: v for k, v in context.invocation_metadata()})
        return self.tries[min(len(self.requests), len(self.tries)) - 1]

    def _end(self, this: Try, context: grpc.ServicerContext) -> None:
        if this.pushback is not None:
            context.set_trailing_metadata((("grpc-retry-pushback-ms", this.pushback),))
        if this.code != GOOD:
            context.abort(this.code, f"as the script says ({len(self.requests)})")

    def _info(self, request: Any, context: grpc.ServicerContext) -> control_pb2.ModelInfo:
        self._end(self._next_try(request, context), context)
        return control_pb2.ModelInfo(name="fake")

    def _generate(
        self, request: pb.GenerateRequest, context: grpc.ServicerContext
    ) -> Iterator[pb.GenerateEvent]:
        this = self._next_try(request, context)
        number = len(self.requests)
        seed = request.sampling.seed if request.sampling.HasField("seed") else 40 + number
        yield pb.GenerateEvent(admitted=pb.Admitted(request_id=f"{number:016x}", seed=seed))
        # Pieces of other sizes in every try.
        for index in range(0, this.tokens, number):
            ids = list(range(index, min(index + number, this.tokens)))
            text = "".join(f"<{i}>" for i in ids)
            ids = [999 if i == this.change else i for i in ids]
            yield pb.GenerateEvent(tokens=pb.Tokens(index=index, ids=ids, text=text))
        while this.hang and context.is_active():
            time.sleep(0.02)
        if not this.finish:
            self._end(this, context)
        claim = this.tokens if this.claim is None else this.claim
        end = pb.Finished(
            reason=pb.FINISH_REASON_LENGTH, usage=pb.Usage(completion_tokens=claim)
        )
        yield pb.GenerateEvent(finished=end)
        self._end(this, context)


def text_of(tokens: int) -> str:
    return "".join(f"<{i}>" for i in range(tokens))
