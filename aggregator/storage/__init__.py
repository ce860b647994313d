"""The aggregator's files: the job queue and its epoch (SQLite), the logs of jobs, and which aggregator leads."""
