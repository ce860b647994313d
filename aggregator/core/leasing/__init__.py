"""Leases: the work that workers are given, and when it is taken back."""
