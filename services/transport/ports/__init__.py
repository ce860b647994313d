"""Listening ports, and the limits under which they accept connections."""
