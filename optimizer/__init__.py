"""The optimizer: keeps a job's float32 master weights, decides when a step happens, and writes checkpoints.

Modules in reading order:

    core/                     decisions, without input or output
    update_rules.py           AdamW, SGD, NoOp; compiled_update_rules.py has the same formulas for numba
    schedules.py              learning rate and beta1 as functions of the step
    huge_page_arrays.py       allocation of the flat arrays
    master_tensors.py         weights, staged gradient and rule state of one job
    tensor_store.py           where the tensors live: interface, with local_tensor_store.py for this process.
                              aggregator/shards/client/tensor_store.py spreads them over shards
    checkpoint_store.py       checkpoints and generations on disk; checkpoint_use.py says which are being read, and
                              checkpoint_removal.py removes those of ended jobs; void_file.py lists void ones
    job_files.py              what is read from disk to open a job
    engine.py                 carries out what the core decides; runs in the optimizer's process (3-tier) or in the
                              aggregator's (2-tier and shards)
    service.py, daemon.py     gRPC service and command line options of an optimizer process
"""
