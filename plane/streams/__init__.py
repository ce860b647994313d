"""Data streams between roles: chunks in messages or in shared memory, and the newest weights that they carry."""
