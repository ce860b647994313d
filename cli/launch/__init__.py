"""`tiermesh launch`: turns a configuration folder of tt-train's multi-host examples into a running cluster.

Reading order: `hosts_file`, `rankfile` and `rank_bindings` read the folder's files; `configuration` says which of them
are used; `plan` gives each rank a role, a host and an environment; `command_line` has what each daemon is started with.

`run` carries it out: `sites` reaches the hosts by `openssh`, `preflight` checks them, `run_certificates` makes
certificates, and `cluster` starts, watches and stops daemons through the agents of `agent/`. `record` lets later
commands find a detached run.
"""
