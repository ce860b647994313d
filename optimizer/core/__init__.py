"""The optimizer's core: a pure state machine that takes inputs and returns effects.

Modules in reading order:

    events.py                 the inputs and effects
    open_job.py               the state of a job that is open, and what planes have reported on it
    checkpoint_schedule.py    when checkpoints are taken, one at a time, and what happens when one fails
    job_core.py               JobCore: opening a job, initial weights, steps, steps that start over
    optimizer.py              OptimizerCore: the link to the aggregator, and a JobCore for each job

`OptimizerCore.handle` takes an input and returns the effects. The service carries them out in order and answers those
that say so in events.py.
"""
