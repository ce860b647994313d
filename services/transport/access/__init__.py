"""Access control: callers by certificate or token, and the table of permissions that every call is checked against."""
