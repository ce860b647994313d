"""`tiermesh import-weights`: weights of tt-train as a folder that jobs can start from.

`command.py` is what people call. `weights_file.py` reads tt-train's file, `parameters.py` knows where each tensor is;
`services/checkpoints/hugging_face.py` writes the folder.
"""
