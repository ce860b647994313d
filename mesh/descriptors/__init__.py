"""Mesh graph descriptors: the files that tell ttnn which devices form a mesh."""
