"""Every service and method of every .proto file of Tiermesh."""

from __future__ import annotations

import importlib
import pkgutil

from google.protobuf.descriptor import ServiceDescriptor

import protos


def own_services() -> list[ServiceDescriptor]:
    """Return every service of every .proto file."""
    modules = [each.name for each in pkgutil.iter_modules(protos.__path__) if each.name.endswith("_pb2")]
    files = [importlib.import_module(f"protos.{name}").DESCRIPTOR for name in modules]
    return [service for file in files for service in file.services_by_name.values()]


def methods_of(services: list[ServiceDescriptor]) -> list[str]:
    """Return the methods of services as `/package.Service/Method`."""
    return [f"/{service.full_name}/{method.name}" for service in services for method in service.methods]


OWN_METHODS = methods_of(own_services())
