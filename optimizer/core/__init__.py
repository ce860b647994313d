"""The optimizer's core: a pure state machine that takes inputs and returns effects.

Modules in reading order:

    events.py                 the inputs and effects
    open_job.py               the state of the job that is open, and what planes have reported on it
    checkpoint_schedule.py    when checkpoints are taken, and what happens when one fails
    optimizer.py              OptimizerCore: opening a job, initial weights, steps, steps that start over

`OptimizerCore.handle` takes an input and returns the effects. The service carries them out in order and answers those
that say so in events.py.
"""
