"""Each optimizer of tt-train's registry with each of its keys, in the block and flat."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from services.config.sections import FLAT_OPTIMIZER_KEYS, OPTIMIZERS, optimizer_keys
from tests.support.facts import has_facts

Load = Callable[..., tuple]
Refuse = Callable[..., str]

ADAMW = {"lr": 0.02, "beta1": 0.8, "beta2": 0.95, "epsilon": 1e-6, "weight_decay": 0.3, "amsgrad": True}
SGD = {"lr": 0.02, "momentum": 0.8, "dampening": 0.1, "weight_decay": 0.3}
NESTEROV = {"momentum": 0.8, "nesterov": True}
ROUNDING = {"stochastic_rounding": True, "kahan_summation": True}
REGISTRY: dict[str, tuple[str, dict[str, Any]]] = {
    "AdamW": ("adamw", ADAMW),
    "AdamWFullPrecision": ("adamw", ADAMW),
    "MorehAdamW": ("adamw", ADAMW),
    "AdamWComposite": ("adamw", ADAMW),
    "SGD": ("sgd", SGD),
    "SGDComposite": ("sgd", SGD),
    "NoOp": ("noop", {}),
}
VARIANTS = {"MorehAdamW": "AdamW", "AdamWComposite": "AdamW", "SGDComposite": "SGD"}


def test_all_names_of_the_registry_are_here() -> None:
    assert REGISTRY.keys() == OPTIMIZERS.keys()
    assert ADAMW.keys() | SGD.keys() | NESTEROV.keys() | ROUNDING.keys() == optimizer_keys() - {
        "type", "weight_decay_on",
    }  # fmt: skip


@pytest.mark.parametrize("name", REGISTRY)
def test_an_optimizer_reads_all_its_keys(load: Load, name: str) -> None:
    kind, settings = REGISTRY[name]
    job, notices = load(training_config={"optimizer": {"type": name, **settings}})
    assert job.optimizer.type == kind
    assert {key: getattr(job.optimizer, key) for key in settings} == settings
    assert [notice.partition(" here")[0] for notice in notices] == [
        f'training_config.optimizer.type: "{each}" is {VARIANTS[each]}' for each in VARIANTS if each == name
    ]


@pytest.mark.parametrize("name", REGISTRY)
def test_keys_of_other_optimizers_are_noticed_once_each(load: Load, name: str) -> None:
    kind, settings = REGISTRY[name]
    given = {**ADAMW, **SGD, **NESTEROV, **ROUNDING, **settings}
    if kind == "sgd":
        given["nesterov"] = False
    job, notices = load(training_config={"optimizer": {"type": name, **given}})
    assert job.optimizer.type == kind
    fields = [notice.partition(":")[0].rpartition(".")[2] for notice in notices if "here" not in notice]
    read = settings.keys() | ({"nesterov"} if kind == "sgd" else set())
    assert sorted(fields) == sorted(given.keys() - read)


def test_the_command_line_changes_the_type_alone(load: Load) -> None:
    block = {"type": "AdamW", "lr": 0.02, "beta1": 0.8}
    sgd, notices = load("optimizer.type=SGD", training_config={"optimizer": block})
    assert (sgd.optimizer.type, sgd.optimizer.lr, len(notices)) == ("sgd", 0.02, 1)
    assert load("optimizer.type=NoOp", training_config={"optimizer": block})[0].optimizer.type == "noop"
    assert load("use_no_op=true", training_config={"optimizer": block})[0].optimizer.type == "noop"


def test_flat_keys_are_those_of_the_block(load: Load) -> None:
    for settings in (
        {"learning_rate": 0.02, "momentum": 0.8, "dampening": 0.1, "weight_decay": 0.3},
        {"learning_rate": 0.02, "momentum": 0.8, "nesterov": True},
        {"learning_rate": 0.02, "beta1": 0.8, "beta2": 0.95, "eps": 1e-6, "weight_decay": 0.3},
    ):
        flat, notices = load(training_config=settings)
        block = {FLAT_OPTIMIZER_KEYS[key]: value for key, value in settings.items()}
        kind = "SGD" if "momentum" in settings else "AdamW"
        assert flat.optimizer == load(training_config={"optimizer": {"type": kind, **block}})[0].optimizer
        assert notices == []


@pytest.mark.parametrize("other", [{"beta1": 0.9}, {"eps": 1e-8}, {"use_moreh_adamw": True}])
def test_flat_keys_of_two_optimizers_are_refused(refused: Refuse, other: dict) -> None:
    line = refused(training_config={"momentum": 0.9, **other})
    assert has_facts(line, f"training_config.momentum: 0.9 ... SGD ... {next(iter(other))} ... AdamW")


@pytest.mark.parametrize(
    ("optimizer", "facts"),
    [
        ({"type": "adamw"}, 'training_config.optimizer.type: "adamw" ... NoOp ... did you mean AdamW?'),
        ({"type": "Lion"}, 'training_config.optimizer.type: "Lion" ... NoOp'),
        ({"type": 3}, "training_config.optimizer.type: 3 given"),
        ({"learning_rate": 0.1}, "training_config.optimizer.learning_rate: 0.1 ... lr"),
        ({"eps": 0.1}, "training_config.optimizer.eps: 0.1 ... epsilon"),
        ({"ns_steps": 5}, "training_config.optimizer.ns_steps: unknown key"),
        ("AdamW", 'training_config.optimizer: "AdamW" given ... optimizer: {type: AdamW}'),
        *(({"type": name}, f'"{name}" is not supported yet') for name in ("Muon", "MuonComposite", "MuonWithAdamW")),
    ],
)  # fmt: skip
def test_an_unknown_part_is_refused_by_what_it_is(refused: Refuse, optimizer: object, facts: str) -> None:
    assert has_facts(refused(training_config={"optimizer": optimizer}), facts)


@pytest.mark.parametrize(
    "setting", ["beta1=0.5", "weight_decay=0.5", "optimizer.lr=0.5", "learning_rate=0.5", "eps=0.5"]
)
@pytest.mark.parametrize("training", [{"learning_rate": 0.1}, {"optimizer": {"lr": 0.1}}, {}])
def test_the_command_line_sets_either_spelling(load: Load, setting: str, training: dict) -> None:
    optimizer = load(setting, training_config=training)[0].optimizer
    assert 0.5 in (optimizer.beta1, optimizer.weight_decay, optimizer.lr, optimizer.epsilon)
    assert "lr" in setting or "learning_rate" in setting or optimizer.lr == (0.1 if training else 3e-4)
