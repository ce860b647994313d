"""Token files: ids of a tokenized text, opened without reading them and verified by block at their first use.

A file that has changed since this host described or verified it is verified as a whole when it is opened.

May import services' checkpoints (to synchronise folders), input files and errors. Read them in this order:

1. `binary_format`: which bytes of a `.bin` or `.npy` are ids, and of what type.
2. `sidecar`: the description beside such a file. `block_digest` makes its hashes.
3. `verified`: which files this host has verified. `reading_progress` tells a watcher how far a long reading is.
4. `token_file`: what training and submission call. Start here to use a file of ids.
5. `id_text`, `conversion`, `cache`: ids written as YAML or CSV, converted once into a binary file.
6. `writer`: a new file of ids with its sidecar. `new_file` makes it appear only when it is complete.
"""
