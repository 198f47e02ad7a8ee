"""The methods of the server, for a channel of either kind.

Written out here rather than generated: the generated module of services demands
the grpcio that is newest when it is made.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import Message

from recurve._request import set_field
from recurve._types import Health
from recurve.v1 import control_pb2, inference_pb2, state_pb2


class Method(NamedTuple):
    path: str
    response: type[Message]


GENERATE = Method("/recurve.v1.Inference/Generate", inference_pb2.GenerateEvent)
DECODE = Method("/recurve.v1.Inference/Decode", inference_pb2.DecodeResponse)
MODEL_INFO = Method("/recurve.v1.Control/GetModelInfo", control_pb2.ModelInfo)
SERVER_INFO = Method("/recurve.v1.Control/GetServerInfo", control_pb2.ServerInfo)
LOAD = Method("/recurve.v1.Control/GetLoad", control_pb2.Load)
ABORT = Method("/recurve.v1.Control/Abort", control_pb2.AbortResponse)
DRAIN = Method("/recurve.v1.Control/Drain", control_pb2.DrainResponse)
SNAPSHOT = Method("/recurve.v1.State/Snapshot", state_pb2.StateInfo)
FORK = Method("/recurve.v1.State/Fork", state_pb2.ForkResponse)
GET_STATE = Method("/recurve.v1.State/Get", state_pb2.StateInfo)
LIST_STATES = Method("/recurve.v1.State/List", state_pb2.ListStatesResponse)
PIN_STATE = Method("/recurve.v1.State/Pin", state_pb2.StateInfo)
RELEASE_STATE = Method("/recurve.v1.State/Release", state_pb2.ReleaseStateResponse)
EXPORT_STATE = Method("/recurve.v1.State/Export", state_pb2.ExportStateResponse)
IMPORT_STATE = Method("/recurve.v1.State/Import", state_pb2.StateInfo)


def _health_messages() -> tuple[type[Message], type[Message]]:
    # In a pool of its own: in the default one these would collide with those of
    # the package grpcio-health-checking, if the program uses that as well.
    file = descriptor_pb2.FileDescriptorProto(
        name="recurve/health.proto", package="grpc.health.v1", syntax="proto3"
    )
    number = descriptor_pb2.FieldDescriptorProto
    file.message_type.add(name="HealthCheckRequest").field.add(
        name="service", number=1, type=number.TYPE_STRING, label=number.LABEL_OPTIONAL
    )
    # The enum as its number, which is the same on the wire.
    file.message_type.add(name="HealthCheckResponse").field.add(
        name="status", number=1, type=number.TYPE_INT32, label=number.LABEL_OPTIONAL
    )
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    request, response = (
        message_factory.GetMessageClass(pool.FindMessageTypeByName(f"grpc.health.v1.{name}"))
        for name in ("HealthCheckRequest", "HealthCheckResponse")
    )
    return request, response


_HealthRequest, _HealthResponse = _health_messages()
HEALTH = Method("/grpc.health.v1.Health/Check", _HealthResponse)


def health_request(service: str) -> Message:
    request = _HealthRequest()
    set_field(request, "service", service, "service")
    return request


def abort_request(request_id: str) -> Message:
    request = control_pb2.AbortRequest()
    set_field(request, "request_id", request_id, "request_id")
    return request


def health_of(response: Any) -> Health:
    return {1: Health.SERVING, 2: Health.NOT_SERVING}.get(response.status, Health.UNKNOWN)


def serialize(message: Message) -> bytes:
    return message.SerializeToString()
