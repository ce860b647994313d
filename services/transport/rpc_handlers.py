"""The methods of a gRPC service, as a server takes them, by what its .proto file says of them."""

from __future__ import annotations

import grpc
from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.message_factory import GetMessageClass


def handlers_of(service: ServiceDescriptor, servicer: object) -> grpc.GenericRpcHandler:
    """Serves each method by that of `servicer` which has its name.

    Args:
        service: its methods take one request each.
        servicer: its methods take request and context; those that answer with several messages are async generators.
    """
    handlers = {}
    for method in service.methods:
        several, one = grpc.unary_stream_rpc_method_handler, grpc.unary_unary_rpc_method_handler
        handler = several if method.server_streaming else one
        request, response = GetMessageClass(method.input_type), GetMessageClass(method.output_type)
        handlers[method.name] = handler(
            getattr(servicer, method.name), request.FromString, response.SerializeToString
        )
    return grpc.method_handlers_generic_handler(service.full_name, handlers)
