"""Which jobs run, and which worker serves which: `views` has what is known and what is decided, `scheduler` decides.

`room` says whether a job has the memory that it needs beside the jobs that run.
"""
