"""The optimizer: decides when steps happen, keeps jobs' master weights in planes, and writes checkpoints.

Modules in reading order:

    core/                     decisions, without input or output
    schedules.py              norm, learning rate, clip and beta1 of an update: functions of its step and its gradient
    job_tensors.py            jobs' tensors, which are in planes (plane/): opened, and copied for checkpoints
    checkpoint_store.py       checkpoints and generations on disk; checkpoint_use.py says which are being read, and
                              checkpoint_removal.py removes those of ended jobs; void_file.py lists void ones
    disk_thread.py            the thread of the disk, on which jobs take turns
    job_files.py              what is read from disk to open a job
    job_opener.py             opens jobs, with that and their tensors
    checkpoint_writer.py      writes copies of tensors as checkpoints
    engine.py                 carries out what the core decides; runs in the optimizer's process (3-tier) or in the
                              aggregator's (2-tier and shards)
    service.py, daemon.py     gRPC service and command line options of an optimizer process
"""
