"""Messages about jobs to targets that the operator has defined, such as a channel of Slack.

    targets.py     the operator's file: names, forms and URLs, which are secrets
    rules.py       what a job's target is told, and what not again
    messages.py    a notice, and its two forms
    sender.py      one target's messages, on a thread of its own: waits on disk, retries, pace
    notifier.py    all jobs and all targets, as the aggregator uses them

Trackers (services/tracking) are close relatives; both work on the thread of services/runtime/queue_thread.py.
"""
