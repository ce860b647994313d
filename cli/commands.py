"""All commands, by purpose: where each is defined, and examples for its help."""

from __future__ import annotations

from collections.abc import Mapping

from cli.command_group import Entry

_JOB = "configs/training_configs/nanogpt_shakespeare_char_cpu.yaml"

SECTIONS: Mapping[str, Mapping[str, Entry]] = {
    "Run a job": {
        "local": Entry("cli.local_commands:local", (f"local {_JOB}",)),
        "launch": Entry(
            "cli.launch.command:launch",
            ("launch FOLDER --config job.yaml --dry-run",),
        ),
        "submit": Entry("cli.job_commands:submit", ("submit job.yaml max_steps=1000 --follow",)),
        "continue": Entry("cli.job_commands:continue_", ("continue 1124-174210-k3fd --steps 2000 --follow",)),
    },
    "Look at jobs and the cluster": {
        "jobs": Entry("cli.job_commands:jobs", ("jobs --aggregator loudbox-1:7070",)),
        "status": Entry("cli.job_commands:status", ("status", "status 1124-174210-k3fd")),
        "logs": Entry("cli.job_commands:logs", ("logs 1124-174210-k3fd --follow",)),
        "metrics": Entry(
            "cli.job_commands:metrics",
            ("metrics 1124-174210-k3fd", "metrics 1124-174210-k3fd --csv --columns loss,mfu"),
        ),
        "plot": Entry(
            "cli.plot.command:plot",
            ("plot 1124-174210-k3fd 1125-090311-x9q2 -o loss.svg --log", "plot .tiermesh/local --smooth 20"),
        ),
        "queue": Entry(
            "cli.queue_commands:queue",
            (
                "queue --aggregator loudbox-1:7070",
                "queue backup --state-dir .tiermesh/aggregator --output queue.bak",
                "queue check queue.bak",
                "queue restore queue.bak --state-dir .tiermesh/aggregator",
            ),
        ),
        "cancel": Entry("cli.job_commands:cancel", ("cancel 1124-174210-k3fd",)),
        "pause": Entry("cli.queue_commands:pause", ("pause 1124-174210-k3fd",)),
        "resume": Entry("cli.queue_commands:resume", ("resume 1124-174210-k3fd",)),
        "priority": Entry("cli.queue_commands:priority", ("priority 1124-174210-k3fd 5",)),
        "trust": Entry("cli.job_commands:trust", ("trust 1124-174210-k3fd loudbox-2",)),
        "download": Entry("cli.job_commands:download", ("download 1124-174210-k3fd checkpoints",)),
    },
    "Data and models": {
        "validate": Entry("cli.model_commands:validate", ("validate job.yaml --workers 4",)),
        "tokenize": Entry(
            "cli.tokenize.command:tokenize",
            ("tokenize corpus.txt --tokenizer tokenizer.json --output ids.bin",),
        ),
        "import-weights": Entry(
            "cli.import_weights.command:import_weights",
            ("import-weights model.msgpack job.yaml --output DIR",),
        ),
        "generate": Entry(
            "cli.model_commands:generate", ("generate checkpoints/step-00000500 --prompt 'To be'",)
        ),
        "measure": Entry("cli.model_commands:measure", ("measure job.yaml",)),
    },
    "Daemons": {
        "worker": Entry("cli.daemon_commands:worker", ("worker --aggregator loudbox-1:7070",)),
        "aggregator": Entry(
            "cli.daemon_commands:aggregator",
            ("aggregator", "aggregator --listen 0.0.0.0:7070 --insecure"),
        ),
        "optimizer": Entry("cli.daemon_commands:optimizer", ("optimizer --listen 0.0.0.0:7071 --insecure",)),
        "web": Entry("cli.daemon_commands:web", ("web --aggregator loudbox-1:7070",)),
    },
    "Security": {
        "certs": Entry(
            "cli.certs.commands:certs",
            (
                "certs init",
                "certs issue aggregator loudbox-1",
                "certs renew --within 30",
                "certs revoke person alice",
                "certs show",
            ),
        ),
        "tokens": Entry(
            "cli.certs.token_commands:tokens",
            ("tokens issue alice --out alice.token", "tokens show", "tokens revoke 3f9c2a417be05d68"),
        ),
    },
    "Maintenance": {
        "check": Entry("cli.model_commands:check", ("check --mesh", "check --cluster")),
        "prune": Entry("cli.job_commands:prune", ("prune --older-than 30d --dry-run",)),
        "cluster": Entry(
            "cli.cluster_commands:cluster",
            (
                "cluster show --state-dir .tiermesh/optimizer",
                "cluster adopt 0123456789abcdef --state-dir .tiermesh/optimizer",
            ),
        ),
        "timeline": Entry("cli.model_commands:timeline", ("timeline build/timeline",)),
        "chaos": Entry("cli.local_commands:chaos", ("chaos job.yaml --seed 7 --verify",)),
        "completion": Entry(
            "cli.completion:completion",
            ("completion bash >> ~/.bashrc", "completion zsh >> ~/.zshrc"),
        ),
    },
    "": {"launch-agent": Entry("cli.launch.agent.command:launch_agent", ())},
}
"""Entries by section and by the command's name, in the order of the help. The commands of "" are hidden."""
