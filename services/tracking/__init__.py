"""Trackers: where a job's loss, speed and other figures are kept for people to look at.

    points.py           figures of an event, by their Prometheus names
    tracker.py          what a tracker does, and which steps it has
    line_files.py       CSV and JSON lines, without a library
    tensorboard.py      TensorBoard, by tensorboardX
    wandb_run.py        Weights & Biases
    mlflow_run.py       MLflow
    catalogue.py        all of them by name, and what they need
    recorder.py         one tracker of one job on a thread of its own
    job_recorders.py    all trackers of one job

The aggregator writes them (aggregator/tracking.py), or the command that submits a job and follows it
(cli/tracking.py). A tracker that fails, hangs or is slow costs points, which are counted, and never a step.
"""
