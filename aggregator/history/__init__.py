"""The history of each job's figures: loss, speed and others of every step, on disk for as long as the job's record.

    metrics/JOB/steps       a record of 80 bytes for each step, at the place that follows from its number
    metrics/JOB/by-64       a summary of 328 bytes for each 64 steps: smallest, largest and mean of each figure
    metrics/JOB/by-4096     the same for each 4,096 steps
    metrics/JOB/names       the workers that were waited for, a line each

Read it in this order:

1. columns.py: the columns, and how they lie in records.
2. summaries.py: what is known of several steps, in memory.
3. files.py: files of records, each with a checksum, and of names.
4. writer.py: takes the events of running jobs.
5. reader.py: answers `tiermesh.Jobs/Metrics`.
"""
