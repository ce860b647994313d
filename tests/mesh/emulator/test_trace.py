from __future__ import annotations

import pytest

import mesh.emulator as tt
from mesh.device import Mesh


def test_traces_are_refused_as_under_slow_dispatch(one_chip: Mesh) -> None:
    device = one_chip.handle
    with pytest.raises(RuntimeError, match="Not supported for slow dispatch"):
        tt.begin_trace_capture(device, cq_id=0)
    with pytest.raises(RuntimeError, match="Not supported for slow dispatch"):
        tt.execute_trace(device, tt.MeshTraceId(0), blocking=False)
    with pytest.raises(RuntimeError, match="end_trace_capture"):
        tt.end_trace_capture(device, tt.MeshTraceId(0))
    tt.release_trace(device, tt.MeshTraceId(0))
