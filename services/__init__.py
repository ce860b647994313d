"""Code that every daemon shares, in layers. A layer imports only layers before it, and `make lint` checks that.

Read them in this order, the lowest first:

1. `printable`, `errors`, `system_errors`, `input_files`, `yaml_text`, `timeouts`, `version`: text that a terminal
   shows unchanged, errors for people, bounded reading of files and YAML, limits of all waits, Tiermesh's version.
2. `instrumentation`: failpoints and the timeline, which any later layer may call.
3. `protocol`: the plan of a job's steps, weight versions, message envelopes and checksums.
4. `pipeline`: stages of a pipeline, the blocks and the schedule of each.
5. `tensors`: the layout of a model's parameters, chunks, the reduction tree, numeric kernels.
6. `checkpoints`: checkpoint folders on disk.
7. `corpora`: files of token ids, of any size, verified block by block.
8. `config`: schemas of job configs, and the translation of tt-train's.
9. `transport`: connections between roles: gRPC, HTTP/2 streams, TLS, references to shared memory.
10. `runtime`: the process around a role's service: signals, logs, metrics, recording.
"""
