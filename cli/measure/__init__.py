"""`tiermesh measure`: the times of a model's blocks on this host's mesh, and the split that they balance.

Read `command.py`, then `report.py`.
"""
