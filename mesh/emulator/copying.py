"""Putting new values into a tensor that is on the device already."""

from __future__ import annotations

from mesh.emulator.tensor import Tensor, check, fill


def copy_host_to_device_tensor(host_tensor: Tensor, device_tensor: Tensor) -> None:
    """Give `device_tensor` the values of `host_tensor`, which stay where they are.

    Raises RuntimeError unless shape on each chip, dtype and layout are equal, and one is on the host, the other not.
    """
    op = "copy_host_to_device_tensor"
    check(op, host_tensor, on_device=False)
    check(op, device_tensor)
    if not host_tensor.on_host:
        raise RuntimeError(f"{op}: Expected Tensor with HostStorage, got {host_tensor.storage_type()}")
    if host_tensor.dtype is not device_tensor.dtype:
        raise RuntimeError(f"{op}: Host tensor has different dtype: {host_tensor.dtype}")
    if host_tensor.layout is not device_tensor.layout:
        raise RuntimeError(f"{op}: Host tensor has different page config: {host_tensor.layout}")
    fill(device_tensor, host_tensor.array, op)
