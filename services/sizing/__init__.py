"""What a job will take, computed from its config alone: nothing is built, and no memory grows with the model.

    chips.py            memory of the chips that exist
    allocation.py       bytes that a tensor takes on a chip, in whole tiles over its banks
    share.py            what one chip has of a job's tensors
    points.py           points of a pass at which memory may be at its peak
    blocks.py           such points of a transformer block
    ends.py             such points of embedding, projection and loss
    portion.py          what a stage of a pipeline has of a model
    device_memory.py    peak memory of a chip, by what it is for
    fitting.py          changes with which a job that is too large fits
    host_memory.py      memory of worker, aggregator, optimizer and shards
    job_memory.py       the same for one job, from its config alone
    links.py            bytes between roles in a step
    pipeline.py         stages of a pipeline, its bubble, and bytes between stages
    measured_split.py   stages that are balanced by measured times
    disk.py             checkpoints on disk
    critical_path.py    the least time of a step, from the times of its parts
    step_time.py        those parts, and the time of a job, from its config and the rate of links
    idle.py             workers that a step is too small for
    flops.py            floating-point operations of a token, and the peak of chips

`tiermesh validate` prints all of it. A worker refuses a job that its chips can't hold. docs/use/sizing.md explains the
formulas, and `make bench ONLY=memory_estimate` compares them with what the emulator measures.
"""
