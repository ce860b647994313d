"""Which worker serves which job: `views` has what is known and what is decided, `scheduler` decides."""
