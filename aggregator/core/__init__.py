"""The aggregator's decisions: a state machine without sockets, threads, clocks or files.

`AggregatorCore.handle` takes one input and returns the effects that the service carries out, in order. The same
inputs at the same times always give the same effects, so a recorded run can be replayed.

Read the files in this order:

1. events.py: the inputs and effects.
2. aggregator.py: `AggregatorCore` keeps what outlives a job: the queue (live_jobs.py), the workers, the optimizer.
   requests.py has what people ask for. scheduler_input.py shows jobs and workers to the scheduler, assignments.py moves
   workers as it decides, and job_runs.py starts and ends the runs of jobs.
3. started_job.py: the parts of a job's run, and how it opens, ends and stops. running_job.py: `RunningJob` takes it
   through its phases: initialise, train, evaluate, checkpoint. worker_reports.py and optimizer_reports.py have what is
   reported to it, job_weights.py who gets its weights first.
4. progress.py: how far it is, and what comes next.
5. sums/: coverage.py knows which gradients of a step have arrived, step_sum.py who computes them, and
   chunk_router.py what happens to each payload, by the orders of plane_orders.py.
6. leasing/: planning.py splits a step among the workers, lease_book.py keeps their leases, and results.py
   records what workers report of them. stalls.py and failures.py take leases back.
7. membership/: who may take part in a job, how many workers it needs, and who is excluded.
8. rows/: leases go to rows of workers, one worker each without a pipeline. job_rows.py makes one report of several.
   With a pipeline, forming.py says who gets which stages.
9. verification/: sampled micro-batches are computed twice to find faulty hardware.
10. waits.py and job_report.py: what users and tools see.

succession.py stands apart: it decides by time alone which aggregator leads.
"""
