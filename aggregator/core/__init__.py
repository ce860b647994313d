"""The aggregator's decisions: a state machine without sockets, threads, clocks or files.

`AggregatorCore.handle` takes one input and returns the effects that the service carries out, in order. The same
inputs at the same times always give the same effects, so a recorded run can be replayed.

Read the files in this order:

1. events.py: the inputs and effects.
2. aggregator.py: `AggregatorCore` keeps what outlives a job, which is the queue, the workers and the optimizer.
3. running_job.py: `RunningJob` takes one job through its phases: initialise, train, evaluate, checkpoint.
4. sums/: coverage.py knows which gradients of a step have arrived, step_sum.py who computes them, and
   chunk_router.py what happens to each payload.
5. leasing/: planning.py splits a step among the workers, lease_book.py keeps their leases, and results.py
   records what workers report of them. stalls.py and failures.py take leases back.
6. membership/: who may take part in a job, how many workers it needs, and who is excluded.
7. verification/: sampled micro-batches are computed twice to find faulty hardware.
8. waits.py and job_report.py: what users and tools see.

succession.py stands apart: it decides by time alone which aggregator leads.
"""
