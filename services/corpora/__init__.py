"""Token files: ids of a tokenized text, opened without reading them and verified by block at their first use.

May import services' checkpoints (to synchronise folders), input files and errors. Read them in this order:

1. `binary_format`: which bytes of a `.bin` or `.npy` are ids, and of what type.
2. `sidecar`: the description beside such a file. `block_digest` makes its hashes.
3. `token_file`: what training and submission call. Start here to use a file of ids.
4. `id_text`, `conversion`, `cache`: ids written as YAML or CSV, converted once into a binary file.
5. `writer`: a new file of ids with its sidecar. `new_file` makes it appear only when it is complete.
"""
