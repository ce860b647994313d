"""Features: what a job may need of its peers that the minor version before lacks. Pure.

Protocol numbers say how peers speak, features what they can do. A process names all that it has in its Hello. A job
needs those that follow from its configuration, and runs on peers that have them; these may serve other jobs meanwhile.
Once the minor version before has a feature too, its line goes: a peer without it is refused by its protocol number.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, NamedTuple

from services.errors import Refusal


class Feature(NamedTuple):
    """A feature that some jobs need of workers, optimizer and shards.

    Attributes:
        name: its name in Hello.
        since: first version of Tiermesh that has it.
        is_needed_by: returns whether a job needs it, from its complete configuration as JSON (services/config/job.py).
    """

    name: str
    since: str
    is_needed_by: Callable[[Mapping[str, Any]], bool]


FEATURES: tuple[Feature, ...] = (
    Feature("external", "0.3", lambda config: config["model"]["model_type"] == "external"),
    Feature("notify", "0.3", lambda config: "notify" in config),
)
"""What this version has, and 0.2 lacks."""


def name_features() -> tuple[str, ...]:
    """Return the names of all features that this process has."""
    return tuple(each.name for each in FEATURES)


def needed_features(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of the features that a job needs.

    Args:
        config: the job's complete configuration as JSON.
    """
    return tuple(each.name for each in FEATURES if each.is_needed_by(config))


def find_lack(job: str, needed: Iterable[str], offered: Collection[str]) -> Refusal | None:
    """Return why a peer can't serve a job; None if it has all that the job needs.

    Args:
        job: id of the job.
        needed: names of the features that it needs.
        offered: names of the features that the peer has.
    """
    since = {each.name: each.since for each in FEATURES}
    for name in needed:
        if name not in offered:
            return Refusal(
                f"lacks feature {name}, which job {job} needs; upgrade it to Tiermesh {since[name]}"
            )
    return None
