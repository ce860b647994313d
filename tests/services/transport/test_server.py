"""A role's server: health, reflection, ports, message limits and connections."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from protos import jobs_pb2
from services.errors import NotYet
from services.transport.limits import MESSAGE_LIMIT_BYTES
from services.transport.security import Security
from services.transport.server import RoleServer, open_channel, start_server

Echo = Callable[[bytes, grpc.aio.ServicerContext], Awaitable[bytes]]


async def echo(request: bytes, context: grpc.aio.ServicerContext) -> bytes:
    return request


async def peer(request: bytes, context: grpc.aio.ServicerContext) -> bytes:
    return str(context.peer()).encode()


def handlers(answer: Echo) -> list[grpc.GenericRpcHandler]:
    return [
        grpc.method_handlers_generic_handler(
            "test.Test", {"Call": grpc.unary_unary_rpc_method_handler(answer)}
        )
    ]


async def serve(answer: Echo = echo) -> RoleServer:
    return await start_server("127.0.0.1:0", Security(), handlers(answer), ["tiermesh.Jobs"])


async def call(channel: grpc.aio.Channel, request: bytes = b"") -> bytes:
    reply = await channel.unary_unary("/test.Test/Call")(request, timeout=20)
    assert isinstance(reply, bytes)
    return reply


def test_health_follows_set_serving() -> None:
    async def scenario() -> list[int]:
        server = await serve()
        seen = []
        async with open_channel(f"127.0.0.1:{server.port}", Security()) as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            for serving in (None, True, False, True):
                if serving is not None:
                    server.set_serving(serving)
                for name in ("", "tiermesh.Jobs"):
                    reply = await stub.Check(health_pb2.HealthCheckRequest(service=name), timeout=20)
                    seen.append(reply.status)
        await server.stop(0)
        return seen

    states = health_pb2.HealthCheckResponse
    assert asyncio.run(scenario()) == [
        state
        for state in (states.NOT_SERVING, states.SERVING, states.NOT_SERVING, states.SERVING)
        for _ in range(2)
    ]


def test_reflection_lists_the_services_and_describes_their_messages() -> None:
    async def scenario() -> tuple[set[str], int]:
        server = await serve()
        async with open_channel(f"127.0.0.1:{server.port}", Security()) as channel:
            info = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo
            request = reflection_pb2.ServerReflectionRequest
            questions = [
                request(list_services=""),
                request(file_containing_symbol=jobs_pb2.Job.DESCRIPTOR.full_name),
            ]
            replies = [reply async for reply in info(iter(questions), timeout=20)]
        await server.stop(0)
        names = {service.name for service in replies[0].list_services_response.service}
        return names, len(replies[1].file_descriptor_response.file_descriptor_proto)

    names, described = asyncio.run(scenario())
    assert {"tiermesh.Jobs", "grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection"} <= names
    assert described >= 1


def test_the_error_about_a_used_port_names_it() -> None:
    async def scenario() -> None:
        server = await serve()
        address = f"127.0.0.1:{server.port}"
        try:
            with pytest.raises(NotYet, match=rf"listen address {address}: address already in use"):
                await start_server(address, Security(), [], [])
        finally:
            await server.stop(0)

    asyncio.run(scenario())


def test_an_address_of_another_host_may_come_later() -> None:
    with pytest.raises(NotYet, match=r"listen address 192.0.2.1:7070: cannot assign requested address"):
        asyncio.run(start_server("192.0.2.1:7070", Security(insecure=True), [], []))


def test_longer_messages_than_the_limit_are_refused() -> None:
    async def scenario() -> grpc.StatusCode:
        server = await serve()
        try:
            async with open_channel(f"127.0.0.1:{server.port}", Security()) as channel:
                assert len(await call(channel, bytes(MESSAGE_LIMIT_BYTES))) == MESSAGE_LIMIT_BYTES
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await call(channel, bytes(MESSAGE_LIMIT_BYTES + 1))
            return caught.value.code()
        finally:
            await server.stop(0)

    assert asyncio.run(scenario()) == grpc.StatusCode.RESOURCE_EXHAUSTED


def test_channels_share_a_connection_unless_asked_not_to() -> None:
    async def scenario() -> list[bytes]:
        server = await serve(peer)
        address = f"127.0.0.1:{server.port}"
        channels = [
            open_channel(address, Security(), own_connection=own) for own in (False, False, True, True)
        ]
        try:
            return [await call(channel) for channel in channels]
        finally:
            for channel in channels:
                await channel.close()
            await server.stop(0)

    first, second, third, fourth = asyncio.run(scenario())
    assert first == second
    assert len({first, third, fourth}) == 3


def test_stop_lets_open_calls_end() -> None:
    async def scenario() -> bytes:
        started = asyncio.Event()
        finish = asyncio.Event()

        async def slow(request: bytes, context: grpc.aio.ServicerContext) -> bytes:
            started.set()
            await finish.wait()
            return b"done"

        server = await serve(slow)
        async with open_channel(f"127.0.0.1:{server.port}", Security()) as channel:
            answer = asyncio.create_task(call(channel))
            await started.wait()
            stopping = asyncio.create_task(server.stop(20))
            await asyncio.sleep(0)
            finish.set()
            await stopping
            return await answer

    assert asyncio.run(scenario()) == b"done"
