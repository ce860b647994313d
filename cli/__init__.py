"""The `tiermesh` command.

Reading order:

1. commands.py, command_group.py, main.py: the list of commands, their help, and how errors become one line and an exit
   code.
2. options.py, output.py: options and output that all commands share.
3. commands.py: all commands by purpose. daemon_commands.py, job_commands.py, local_commands.py, model_commands.py:
   flags and help of each. They import the work late, so that `--help` is fast.
4. client.py, jobs.py, download.py: commands that call an aggregator.
5. local.py, supervise.py: a whole cluster on this machine; services/runtime/launcher.py starts its daemons.
6. tokenize/: files of token ids from texts.
7. measure/: times of a model's blocks. validate/: what a job would take.
8. chaos/: the same with faults. timeline/: what the daemons recorded of a step.
"""
