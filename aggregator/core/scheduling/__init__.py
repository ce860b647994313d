"""Scheduling: which jobs run, and which workers each of them has.

`room` says whether a job has the memory that it needs beside the jobs that run.
"""
