"""Configs: what users write (tt-train's YAML files), and the complete job that is made of it.

The job is one frozen record that travels as JSON: `job.JobConfig`, built from `job_parts`, `models` and `device`.
Reading a file goes in this order: `load` reads it with its includes (`paths`, `yaml_files`) and applies the command
line's settings (`overrides`); `foreign_keys` refuses other trainers' keys; `sections` has the types of tt-train's
sections; `resolve/` makes the job of them. Every refusal is one line, formatted by `refusals`.

Workers use `corpus` and `pretrained` to find and verify the files that a job names.
"""
