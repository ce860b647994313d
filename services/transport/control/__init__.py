"""Control streams: Hello, messages with checksums, heartbeats, connecting again."""
