"""Client of a Tiermesh training cluster.

    client = tiermesh.Client("https://head:7080", token=...)
    job = client.submit("job.yaml", {"training_config.max_steps": 100})
    for event in client.follow(job.id):
        print(event.text)
    loss = client.metrics(job.id)["loss"]
    client.download(job.id, "model/")

Read it in this order:

    client.py               Client and AsyncClient, made of the same calls
    calls.py                each call once: its path, its body, what it returns
    exchange.py             one request and its answer: errors, limits, what is repeated
    transport.py            requests and answers over httpx2, blocking or on an event loop
    server.py               addresses, tokens, and what errors mean
    outage.py               how long a call goes on without the server
    records.py, curves.py   what calls return
    errors.py               what they raise
    job_files.py            the files that a config names
    job_code.py             the code of a job's own model
    checkpoint_folder.py    a checkpoint as it arrives
    local_cluster.py        a cluster of daemons on this machine

and, for a training loop of the caller's own that computes for a cluster:

    own_loop.py             join, and the work that it gives
    session.py              what the worker's daemon asks of this process
    parameters.py           what a model's parameters are to a cluster; numpy_adapter.py, torch_adapter.py
    gradient.py             a gradient on its way to the daemon
    wire.py                 messages on the worker's socket
"""

from tiermesh.client import AsyncClient, Client
from tiermesh.errors import (
    Failed,
    JobFailed,
    NotAllowed,
    NotFound,
    NotYet,
    Refused,
    TiermeshError,
    Unreachable,
)
from tiermesh.local_cluster import LocalCluster, local
from tiermesh.own_loop import Hint, Run, Work, join
from tiermesh.records import Checkpoint, CheckpointFile, Cluster, Event, Job
from tiermesh.version import VERSION

__version__ = VERSION

__all__ = [
    "AsyncClient",
    "Checkpoint",
    "CheckpointFile",
    "Client",
    "Cluster",
    "Event",
    "Failed",
    "Hint",
    "Job",
    "JobFailed",
    "LocalCluster",
    "NotAllowed",
    "NotFound",
    "NotYet",
    "Refused",
    "Run",
    "TiermeshError",
    "Unreachable",
    "Work",
    "__version__",
    "join",
    "local",
]
