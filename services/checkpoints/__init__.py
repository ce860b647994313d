"""Checkpoints: folders with the state of a job at one step, complete or absent, that Hugging Face's tools can load.

May import services' tensors, instrumentation and errors. Read `format` first, then `write`, `read`, `start`, `prune`.
`export` converts between the layout and `model.safetensors`, which `safetensors_file` writes. `hugging_face` opens
folders that other tools wrote.
"""
