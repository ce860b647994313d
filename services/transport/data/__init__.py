"""Data streams: chunks by HTTP/2, by gRPC, or in memory that two processes of a host share."""
