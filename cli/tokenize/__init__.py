"""`tiermesh tokenize`: a file of token ids from texts.

`command.py` is what people call. `documents.py` reads the texts, `encoding.py` makes ids of them on all cores;
`services/corpora/writer.py` writes the file.
"""
