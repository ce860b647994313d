"""Coverage-guided fuzzing of the parsers in targets.py; needs atheris (`make fuzz`).

python -m tests.fuzz [--seconds 60] [TARGET ...]     fuzz each target for this time, those that strangers reach
                                                     for five times as long; all targets by default
"""

from __future__ import annotations

import argparse
import importlib
import logging
import subprocess
import sys
from pathlib import Path

CORPUS = Path("build/fuzz/corpus")
"""Inputs that reached new code, from which the next run starts."""
MEMORY_LIMIT_MB, INPUT_LIMIT_SECONDS, LONGEST_BYTES = 768, 5, 4096
BEFORE_AUTHENTICATION = 5
"""How many times as long the parsers are fuzzed that strangers reach."""


def fuzz(name: str, seconds: int) -> None:
    """Fuzz one target, then end this process. Failing inputs are written to build/fuzz."""
    import atheris

    with atheris.instrument_imports(include=["services", "aggregator", "optimizer", "cli", "hpack", "h11"]):
        target = importlib.import_module("tests.fuzz.targets").TARGETS[name]
    corpus = CORPUS / name
    corpus.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(target.seeds):
        (corpus / f"seed-{number}").write_bytes(seed)
    limits = (
        f"-max_total_time={seconds * (BEFORE_AUTHENTICATION if target.before_authentication else 1)}",
        f"-rss_limit_mb={MEMORY_LIMIT_MB}",
        f"-timeout={INPUT_LIMIT_SECONDS}",
        f"-max_len={LONGEST_BYTES}",
        f"-artifact_prefix=build/fuzz/{name}-",
    )
    logging.disable()  # lines about refused input would fill the disk
    atheris.Setup([sys.argv[0], *limits, "-verbosity=0", "-print_final_stats=1", str(corpus)], target.run)
    atheris.Fuzz()


def main() -> int:
    """Fuzz the targets in a process each; return 1 if one failed, else 0."""
    parser = argparse.ArgumentParser(prog="tests.fuzz", description=__doc__.splitlines()[0])
    parser.add_argument("target", nargs="*")
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.here:
        fuzz(asked.target[0], asked.seconds)
        return 0
    from tests.fuzz.targets import TARGETS

    failed = []
    for name in asked.target or TARGETS:
        print(f"{name}:", flush=True)
        command = [sys.executable, "-m", "tests.fuzz", "--here", name, "--seconds", str(asked.seconds)]
        if subprocess.run(command, check=False).returncode:
            failed.append(name)
    print(f"failed: {', '.join(failed) or 'none'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
