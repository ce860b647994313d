"""Who may call what: callers by certificate or token, and the one table that every call is held against."""
