"""`tiermesh certs` and `tiermesh tokens`: an authority, certificates with roles, and tokens for people.

`authority.py` makes certificates, `folder.py` keeps them in files. `commands.py` and `token_commands.py`
are what people call.
"""
