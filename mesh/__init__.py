"""The device side: one mesh of chips per process, driven through real `ttnn` or through the emulator.

Code outside this package never asks which of the two it has. Reading order:

1. `axes`, `placement`: the mesh axis of each parallel strategy, and the placement of a tensor over the axes.
2. `device`: open a mesh, close it in order. `backend` selects the module; `descriptors` checks the mesh's shape first.
3. `transfer`, `collectives`, `dropout`: numpy arrays to and from the mesh, sums along its axes, masks of its places.
4. `command_trace`, `memory`, `fingerprint`, `link_check`, `ttnn_errors`: traces, memory figures, diagnosis.
5. `emulator`: the numpy module that stands in for `ttnn`.
"""
