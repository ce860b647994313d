"""Link checks: known values on the path of tensors, compared and timed. Read rounds.py, serve.py, measure.py."""
