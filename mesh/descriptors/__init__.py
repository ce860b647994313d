"""Mesh graph descriptors: the files that tell ttnn which devices form a mesh and how they are linked.

A descriptor that doesn't match the hardware or the job's mesh hangs the devices. It is therefore read and checked
before a device is opened. Reading order: `read` (files), `validate` (required fields), `shape_check` (against a job's
mesh shape), `choose` (which file ttnn reads), `legacy_yaml` (the older format).
"""
