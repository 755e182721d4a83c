import json
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from scavenger.cluster import ClusterConfig, ConfigSpace, MemoryModel, config_columns, space_columns
from scavenger.errors import DocumentProblem, InvalidDocument, PriceMissing
from scavenger.job.fields import Bounds, exact_duration, format_price
from scavenger.job.limits import Limits, MemoryLimit
from scavenger.job.machine import MachineSpec
from scavenger.job.parser import ParsedDocument, scan_json, scan_yaml
from scavenger.job.planning import layout_of, planning_state
from scavenger.job.pricing import (
    InterruptionsSpec,
    MachinePriceSpec,
    MemorySpec,
    ResourcePriceSpec,
    ServersSpec,
)
from scavenger.job.run import CheckpointsSpec, RunSpec
from scavenger.job.spec import (
    EpochsTarget,
    JobSpec,
    MetricTarget,
    ModelSpec,
    WeightedObjective,
)
from scavenger.job.training import (
    DownpourSpec,
    LearningRateSpec,
    NamedStrategySpec,
    ParameterServerSpec,
    PipeDreamSpec,
    SandblasterSpec,
)
from scavenger.job.validation import parse_job, validate_job
from scavenger.layout import PLAIN
from scavenger.learning_rate import LearningRateScaling
from scavenger.planning.layout_search import PipelineSearch
from scavenger.planning.layouts import GIB
from scavenger.pricing import (
    Interruptions,
    MachinePrice,
    PriceModel,
    ResourcePrice,
    ServerPrice,
    on_demand_price_model,
)
from scavenger.protocol import ExchangeInterval, LbfgsSettings, StopAtMetric, StopAtProgress

REFERENCE = Path(__file__).parents[2] / "docs" / "job-spec.md"

GOOD = """\
model: {key: resnet18/cifar10, dataset_size: 50000}
target: {metric: accuracy, goal: 0.97, max_epochs: 120}
limits: {workers: 1..4, batch: 32..256}
price: 0.13402 USD/h
run: {command: [python, train.py]}
"""


def changed(**sections):
    """Return the good document with sections replaced, or keys of a section replaced."""
    document = yaml.safe_load(GOOD)
    for name, section in sections.items():
        is_partial = isinstance(section, dict) and isinstance(document.get(name), dict)
        document[name] = {**document[name], **section} if is_partial else section
    return document


def problems(read, *arguments):
    with pytest.raises(InvalidDocument) as caught:
        read(*arguments)
    return [str(problem) for problem in caught.value.problems]


def test_a_short_document_gets_the_defaults():
    spec = parse_job(GOOD)
    assert spec.name == "resnet18-cifar10"
    assert (spec.objective, spec.search, spec.lr_scaling.rule) == ("knee", "auto", "none")
    assert spec.laws == "measured"
    assert spec.price == spec.price_per_hour == Decimal("0.13402")
    assert spec.price_model == on_demand_price_model(0.13402)
    assert spec.limits.max_cost is None
    assert spec.run.command == ("python", "train.py")
    assert spec.space == ConfigSpace((1, 2, 3, 4), (32, 64, 128, 256))
    assert spec.reference_batch == 32


def example():
    text = REFERENCE.read_text(encoding="utf-8")
    return text.partition("```yaml\n")[2].partition("```")[0]


def test_the_example_of_the_reference_parses():
    spec = parse_job(example())
    grid = ConfigSpace((4, 8, 12, 16, 20, 24), (32, 64, 128, 200), most_local_batch=1400)
    assert spec.space == grid
    assert spec.limits.max_time == 11520
    assert spec.reference_batch == 64


SECTIONS = [
    JobSpec,
    ModelSpec,
    EpochsTarget,
    MetricTarget,
    WeightedObjective,
    Limits,
    MachinePriceSpec,
    ResourcePriceSpec,
    ServersSpec,
    InterruptionsSpec,
    MemorySpec,
    MemoryLimit,
    NamedStrategySpec,
    ParameterServerSpec,
    DownpourSpec,
    PipeDreamSpec,
    SandblasterSpec,
    LearningRateSpec,
    MachineSpec,
    CheckpointsSpec,
    RunSpec,
]


@pytest.mark.parametrize("section", SECTIONS)
def test_the_reference_names_every_key(section):
    rows = REFERENCE.read_text(encoding="utf-8")
    for name, field in section.model_fields.items():
        is_section = name in (
            "model",
            "target",
            "limits",
            "run",
            "machine",
            "servers",
            "interruptions",
            "memory",
        )
        assert is_section or f"`{name}` |" in rows or f".{name}` |" in rows
        assert field.examples


@pytest.mark.parametrize(
    ("target", "words", "rule", "reference"),
    [
        (
            {"metric": "accuracy", "goal": 0.97, "max_epochs": 120},
            "accuracy >= 0.97",
            StopAtMetric("accuracy", 0.97, "at_least", 120.0),
            32,
        ),
        (
            {"metric": "loss", "goal": 2, "direction": "at_most", "max_epochs": 9, "at_batch": 48},
            "loss <= 2",
            StopAtMetric("loss", 2.0, "at_most", 9.0),
            48,
        ),
        ({"epochs": 30, "at_batch": 64}, "30 epochs at batch 64", StopAtProgress(30.0), 64),
        ({"epochs": 0.5, "at_batch": 1}, "0.5 epochs at batch 1", StopAtProgress(0.5), 1),
    ],
)
def test_a_target_says_when_to_stop(target, words, rule, reference):
    document = changed()
    spec = validate_job(document | {"target": target})
    assert spec.target_text == words
    assert spec.stop_rule == rule
    assert spec.reference_batch == reference


@pytest.mark.parametrize(
    ("limits", "workers", "batches"),
    [
        ({"workers": "4..24", "worker_step": 8}, (4, 12, 20), (32, 64, 128, 256)),
        ({"workers": 3}, (3,), (32, 64, 128, 256)),
        ({"workers": [4, 1, 4]}, (1, 4), (32, 64, 128, 256)),
        ({"batch": "32..200"}, (1, 2, 3, 4), (32, 64, 128, 200)),
        ({"batch": "32..32"}, (1, 2, 3, 4), (32,)),
        ({"batch": [384, 512]}, (1, 2, 3, 4), (384, 512)),
        ({"batch": 96}, (1, 2, 3, 4), (96,)),
    ],
)
def test_limits_span_the_grid(limits, workers, batches):
    assert validate_job(changed(limits=limits)).space == ConfigSpace(workers, batches)


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (["scavenger", "agent", "run", "--", "python", "train.py"], True),
        (["python", "-m", "worker_agent", "run", "--level", "observe", "train"], True),
        (["python", "train.py"], False),
        (["python", "train.py", "--", "agent", "run"], False),
    ],
)
def test_a_script_under_the_agent_is_told_by_its_command(command, expected):
    assert RunSpec(command=command).is_under_agent is expected


@pytest.mark.parametrize(
    ("key", "name"),
    [
        ("resnet18/cifar10", "resnet18-cifar10"),
        ("Big_Model.v2", "big-model-v2"),
        ("...", "job"),
        ("a" * 62 + "/b", "a" * 62),
    ],
)
def test_a_job_is_named_after_its_model(key, name):
    assert validate_job(changed(model={"key": key})).name == name


def test_a_price_may_be_missing_until_it_is_needed():
    written = changed()
    del written["price"]
    spec = validate_job(written)
    assert spec.price is None
    assert "price" not in spec.document()
    assert validate_job(spec.document()) == spec
    for ask in (
        lambda: spec.price_model,
        lambda: spec.price_per_hour,
        lambda: planning_state(spec, (), None),
    ):
        with pytest.raises(PriceMissing, match=r"write e\.g\. price: 0\.13402 USD/h"):
            ask()
    priced = spec.at_price(Decimal("0.20160001"))
    assert validate_job(priced.document()) == priced
    assert priced.price_per_hour == Decimal("0.20160001")


def test_a_tariff_makes_a_price_model():
    spot = {
        "per_hour": "0.10 USD/h",
        "quantum": "1h",
        "servers": {"count": 2, "per_hour": "0.20 USD/h"},
        "interruptions": {"per_hour": 0.05, "restart": "2m"},
    }
    spec = validate_job(changed(price=spot))
    assert spec.price_model == PriceModel(
        MachinePrice(0.1), 3600.0, ServerPrice(2, 0.2), Interruptions(0.05, 120.0)
    )
    assert (spec.price_per_hour, spec.quantum) == (Decimal("0.10"), 3600.0)


def test_a_machine_of_custom_size_is_reserved_for_the_largest_local_batch():
    spec = validate_job(changed(price=CUSTOM, limits={"workers": "3..4"}))
    assert spec.price_model.rate == ResourcePrice(0.02, 0.003, 4.0, MemoryModel(2.0, 0.01))
    largest = 86  # of 256 samples on 3 workers
    assert spec.price_per_hour == Decimal("0.08") + Decimal("0.003") * (2 + Decimal("0.86"))
    dearest = max(
        spec.price_model.per_hour(config_columns([config]))[0] / config.workers
        for config in spec.space
    )
    assert dearest <= float(spec.price_per_hour)
    assert float(spec.price_per_hour) == pytest.approx(0.08 + 0.003 * (2 + 0.01 * largest))


def test_what_fits_no_machine_is_not_in_the_space():
    spec = validate_job(changed(limits={"memory": {**ROOM, "machine_gib": 2.64}}))
    assert spec.space.most_local_batch == 64
    assert max(config.local_batch for config in spec.space) == 64
    assert [c.workers for c in spec.space if c.global_batch == 256] == [4]
    assert validate_job(spec.document()) == spec


def test_no_machine_of_custom_size_is_reserved_for_what_fits_none():
    limits = {"memory": {**ROOM, "machine_gib": 2.64}}
    spec = validate_job(changed(price=CUSTOM, limits=limits))
    assert spec.price_per_hour == Decimal("0.08") + Decimal("0.003") * Decimal("2.64")


@pytest.mark.parametrize(
    ("objective", "words"),
    [
        ("fastest", "fastest"),
        ({"time_weight": 0.7}, "optimum at time 70%, cost 30%"),
    ],
)
def test_an_objective_is_said_in_words(objective, words):
    assert validate_job(changed(objective=objective)).objective_text == words


@pytest.mark.parametrize(
    ("recipe", "epochs", "expected"),
    [
        ("none", 120, LearningRateScaling("none", 32)),
        ("sqrt", 120, LearningRateScaling("sqrt", 32)),
        ("adascale", 120, LearningRateScaling("adascale", 32)),
        ("linear", 60, LearningRateScaling("linear", 32, warm_up=3.0)),
        ("linear", 500, LearningRateScaling("linear", 32, warm_up=5.0)),
        ({"rule": "linear", "warm_up": 0}, 60, LearningRateScaling("linear", 32)),
        ({"rule": "sqrt", "warm_up": 2.5}, 60, LearningRateScaling("sqrt", 32, warm_up=2.5)),
    ],
)
def test_a_learning_rate_follows_the_batch_as_written(recipe, epochs, expected):
    spec = validate_job(changed(lr_scaling=recipe, target={"max_epochs": epochs}))
    assert spec.learning_rate_scaling == expected


@pytest.mark.parametrize(
    ("strategy", "price", "servers", "total"),
    [
        ("all_reduce", "0.10 USD/h", None, 0.2),
        ("parameter_server", "0.10 USD/h", ServerPrice(1, 0.1), 0.3),
        ({"parameter_server": {"servers": 2}}, "0.10 USD/h", ServerPrice(2, 0.1), 0.4),
        ({"parameter_server": {"servers": 2, "priced": False}}, "0.10 USD/h", None, 0.2),
        (
            {"parameter_server": {"servers": 2}},
            {"per_hour": "0.10 USD/h", "servers": {"count": 2, "per_hour": "0.25 USD/h"}},
            ServerPrice(2, 0.25),
            0.7,
        ),
    ],
)
def test_servers_cost_what_the_ledger_will_reserve_for_them(strategy, price, servers, total):
    spec = validate_job(changed(strategy=strategy) | {"price": price})
    assert spec.price_model.servers == servers
    two = spec.price_model.per_hour(config_columns([ClusterConfig(2, 64)]))[0]
    assert two == pytest.approx(total)
    workers, machines = 2 * spec.price_per_hour, spec.strategy.servers * spec.server_price
    assert float(workers + machines) == pytest.approx(total)


def test_downpour_says_how_often_it_speaks_to_its_servers():
    pace = {"downpour": {"servers": 3, "n_push": 2, "n_fetch": 5}}
    one = {"workers": 4, "batch": 256}
    spec = validate_job(changed(strategy=pace, limits=one))
    assert (spec.strategy.name, spec.strategy.servers) == ("downpour", 3)
    assert spec.strategy.exchange == ExchangeInterval(2, 5)
    assert validate_job(changed(strategy="downpour", limits=one)).strategy == DownpourSpec()


def test_sandblaster_says_how_its_servers_step():
    document = changed(
        strategy={"sandblaster": {"servers": 3, "history": 7, "portions": 40}},
        limits={"workers": 4, "batch": 256},
    )
    spec = validate_job(document)
    assert (spec.strategy.name, spec.strategy.servers) == ("sandblaster", 3)
    assert spec.strategy.lbfgs == LbfgsSettings(7, 40)
    plain = validate_job({**document, "strategy": "sandblaster"})
    assert plain.strategy == SandblasterSpec()


@pytest.mark.parametrize(
    ("options", "layout"),
    [
        ({}, "P=2 T=1 R=2-1"),
        ({"vertical_sync": False}, "P=2 T=1 R=2-1"),
        ({"vertical_sync": True}, "P=2 T=1 R=2-1 V=1"),
        ({"vertical_sync": True, "cuts": ["layers.3"]}, "P=2 T=1 R=2-1 V=1 C=layers.3"),
    ],
)
def test_an_asynchronous_pipeline_is_a_layout(options, layout):
    strategy = {"pipedream": {"stages": [2, 1], **options}}
    spec = validate_job(changed(strategy=strategy, limits=ONE))
    assert str(spec.layout) == layout
    assert validate_job(spec.document()) == spec


@pytest.mark.parametrize(
    ("options", "limits", "search"),
    [
        ({}, {}, PipelineSearch(64)),
        ({"vertical_sync": True}, {}, PipelineSearch(64, vertical_sync=True)),
        ({}, {"process_gib": 2.0}, PipelineSearch(64, process_memory_bytes=2 * GIB)),
    ],
)
def test_a_profile_may_find_the_stages(options, limits, search):
    strategy = {"pipedream": {"stages": "auto", **options}}
    spec = validate_job(changed(strategy=strategy, limits=ONE | limits))
    assert (spec.layout, spec.pipeline_search) == (PLAIN, search)
    assert spec.profiles_model
    assert validate_job(spec.document()) == spec
    written = validate_job(changed(strategy=PIPELINE, limits=ONE))
    assert not written.profiles_model
    assert len({layout_of(each) for each in (spec, written, validate_job(changed()))}) == 3


def test_a_script_of_tensorflow_may_be_asynchronous():
    run = {"command": ["scavenger", "agent", "run", "--", "train"]}
    one = {"workers": 4, "batch": 256}
    document = changed(strategy="downpour", framework="tensorflow", limits=one, run=run)
    assert validate_job(document).strategy == DownpourSpec()


prices = st.decimals("0.00001", 10**4, places=5).map(format_price)
figures = st.floats(0, 1000)
terms = {
    "quantum": st.floats(1, 1e5).map(exact_duration),
    "servers": st.fixed_dictionaries({"count": st.integers(1, 9), "per_hour": prices}),
    "interruptions": st.fixed_dictionaries(
        {"per_hour": figures, "restart": st.floats(1, 1e4).map(exact_duration)}
    ),
}
tariffs = (
    prices
    | st.fixed_dictionaries({"per_hour": prices}, optional=terms)
    | st.fixed_dictionaries(
        {
            "per_vcpu_hour": prices,
            "per_gib_hour": prices,
            "vcpus": st.floats(0.1, 96),
            "memory": st.fixed_dictionaries({"fixed_gib": figures, "gib_per_sample": figures}),
        },
        optional=terms,
    )
)
objectives = st.sampled_from(["knee", "cheapest", "fastest"]) | st.fixed_dictionaries(
    {"time_weight": st.floats(0, 1)}
)


@given(tariffs, objectives)
def test_a_tariff_and_an_objective_are_read_back_from_their_document(price, objective):
    spec = validate_job(changed(objective=objective) | {"price": price})
    again = spec.document()
    assert validate_job(again) == spec
    assert validate_job(again).document() == again


@given(tariffs)
def test_what_is_reserved_for_a_machine_pays_it_in_every_configuration(price):
    spec = validate_job(changed() | {"price": price})
    model = replace(spec.price_model, servers=None)
    grid = space_columns(spec.space)
    each = model.per_hour(grid) / grid.workers
    assert each.max() <= float(spec.price_per_hour) * (1 + 1e-12)


def test_a_directory_is_used_only_where_none_is_written():
    written = GOOD.replace("train.py]", "train.py], directory: /a")
    assert parse_job(GOOD, directory="/b").run.directory == "/b"
    assert parse_job(written, directory="/b").run.directory == "/a"
    with pytest.raises(ValueError, match='"b" is not absolute'):
        parse_job(GOOD, directory="b")
    assert len(problems(lambda: parse_job("run: 3", directory="/b"))) == 4


CODE = "0123456789abcdef" * 4


def test_with_code_a_directory_is_inside_it():
    assert parse_job(GOOD, directory="/b", code=CODE).run.code == CODE
    assert parse_job(GOOD, directory="/b", code=CODE).run.directory is None
    written = GOOD.replace("train.py]", f"train.py], code: {'f' * 64}, directory: src/a")
    assert parse_job(written, directory="/b").run.directory == "src/a"
    assert parse_job(written, code=CODE).run.code == CODE
    for wrong in ("/a", "../a", "a/../../b"):
        (problem,) = problems(parse_job, written.replace("src/a", wrong))
        assert "write" in problem
        assert problem.startswith("line ")
    without = GOOD.replace("train.py]", "train.py], directory: src")
    assert problems(parse_job, without) == [
        'line 5, column 36: run.directory: "src" is not absolute: write e.g. /srv/train'
    ]


PIPELINE = {"pipedream": {"stages": [2, 1]}}
ONE = {"workers": 1, "batch": 64}
TARGETS = (
    "write {epochs: 30, at_batch: 64} to train that long, "
    "or {metric: accuracy, goal: 0.97, max_epochs: 120} to train until reached"
)
TARIFFS = "write 0.13402 USD/h or {per_hour: 0.13402 USD/h, quantum: 1h} for each machine"
CUSTOM = {
    "per_vcpu_hour": "0.02 USD/h",
    "per_gib_hour": "0.003 USD/h",
    "vcpus": 4,
    "memory": {"fixed_gib": 2, "gib_per_sample": 0.01},
}
CUT = {"layout": {"pipeline": 2, "micro_batches": 4}}
INTERLEAVED = {"pipeline": 2, "micro_batches": 4, "schedule": "interleaved"}
ROOM = {"machine_gib": 16, "fixed_gib": 2, "gib_per_sample": 0.01}
SECRET = (
    "looks like a secret, and this document is stored and shown: "
    "name it in run.secrets and give its value to the controller, in a file of that name"
)


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        (
            {"model": {"key": "a b"}},
            'model.key: "a b" is no model key: write up to 200 letters, digits and . _ - /, '
            "e.g. resnet18/cifar10",
        ),
        ({"model": {"key": 5}}, "model.key: must be text, got 5: write e.g. resnet18/cifar10"),
        (
            {"model": {"dataset_size": "many"}},
            'model.dataset_size: must be a whole number, got "many": write e.g. 50000',
        ),
        ({"model": {"dataset_size": 0}}, "model.dataset_size: must be at least 1, got 0"),
        ({"model": {"datset_size": 9}}, 'unknown key "datset_size": did you mean dataset_size?'),
        ({"model": 3}, "model: must be a mapping, got 3: write e.g. {key: resnet18/cifar10, "),
        (
            {"name": "A_b"},
            'name: "A_b" is no job name: write up to 63 lower-case letters, digits and hyphens, '
            "e.g. a-b",
        ),
        ({"name": None}, "name: has no value: write e.g. resnet18-cifar10, or leave the key out"),
        ({"run": {"code": "abc"}}, 'run.code: "abc" is no SHA-256 in 64 lower-case hexadecimal'),
        ({"run": {"setup": []}}, 'run.setup: names no program: write e.g. ["python", "train.py"]'),
        ({"run": {"setup": "pip install ."}}, 'run.setup: "pip install ." is a string: write a li'),
        ({"run": {"image": "my image"}}, 'run.image: "my image" names no image: write the cloud'),
        ({"price": None}, "price: has no value: write e.g. 0.13402 USD/h, or leave the key out"),
        ({"price": 0.1}, 'price: 0.1 has no unit: write a unit, e.g. "0.13402 USD/h"'),
        ({"price": "0 USD/h"}, "price: must be above zero, got 0"),
        ({"price": {}}, f"price: says neither per_hour nor per_vcpu_hour: {TARIFFS}"),
        (
            {"price": {"per_hour": "1 USD/h", "vcpus": 4}},
            f"price: per_hour and vcpus exclude each other: {TARIFFS}",
        ),
        ({"price": {"per_hour": 0.1}}, 'price.per_hour: 0.1 has no unit: write a unit, e.g. "0.1'),
        ({"price": {"per_hour": "0 USD/h"}}, "price.per_hour: must be above zero, got 0"),
        (
            {"price": {"per_huor": "1 USD/h"}},
            'price.per_huor: unknown key "per_huor": did you mean per_hour?',
        ),
        (
            {"price": {"per_hour": "1 USD/h", "quantum": 60}},
            'price.quantum: 60 has no unit: write a unit, e.g. "90s"',
        ),
        (
            {"price": {"per_hour": "1 USD/h", "quantum": None}},
            "price.quantum: has no value: write e.g. 1h, or leave the key out",
        ),
        (
            {"price": {"per_hour": "1 USD/h", "servers": {"count": 0, "per_hour": "1 USD/h"}}},
            "price.servers.count: must be at least 1, got 0",
        ),
        (
            {"price": {"per_hour": "1 USD/h", "servers": {"count": 1}}},
            "price.servers.per_hour: is missing: write e.g. per_hour: 0.13402 USD/h",
        ),
        (
            {"price": {"per_hour": "1 USD/h", "restart": "2m"}},
            'price.restart: unknown key "restart": it belongs in price.interruptions',
        ),
        (
            {"price": {**CUSTOM, "memory": {"fixed_gib": -1, "gib_per_sample": 0.01}}},
            "price.memory.fixed_gib: must be at least 0, got -1",
        ),
        ({"price": {**CUSTOM, "vcpus": 0}}, "price.vcpus: must be above 0, got 0"),
        (
            {"price": {**CUSTOM, "memory": 2}},
            "price.memory: must be a mapping, got 2: write e.g. {",
        ),
        (
            {"objective": "kne"},
            'objective: must be knee, cheapest, fastest or e.g. {time_weight: 0.7}, got "kne"',
        ),
        ({"objective": {"time_weight": 1.5}}, "objective.time_weight: must be at most 1, got 1.5"),
        (
            {"objective": {"time_weight": "x"}},
            'objective.time_weight: must be a number, got "x": w',
        ),
        ({"objective": {}}, "objective.time_weight: is missing: write e.g. time_weight: 0.7"),
        (
            {"objective": {"time_wieght": 0.7}},
            'objective.time_wieght: unknown key "time_wieght": did you mean time_weight?',
        ),
        ({"search": False}, "search: must be auto, none, partial, full or universal, got false"),
        ({"laws": "mine"}, 'laws: must be measured or paper, got "mine"'),
        ({"nan_guard": True}, "nan_guard: must be on or off, got true"),
        (
            {"nan_guard": "on", "strategy": "parameter_server"},
            "nan_guard: servers step by themselves and cannot skip a step together: leave "
            "nan_guard out, or write strategy: all_reduce",
        ),
        (
            {"nan_guard": "on", "run": {"command": ["scavenger", "agent", "run", "--", "python"]}},
            "run: steps of a script under agent run are its own and are not guarded: leave "
            "nan_guard out, or let the script open a worker_agent.session()",
        ),
        (
            {"stacks": "fast"},
            'stacks: must be auto, or a list such as [eager, bf16+fused], got "fast"',
        ),
        ({"stacks": []}, "stacks: must be auto, or a list such as [eager, bf16+fused], got a list"),
        ({"stacks": [3]}, "stacks: must be auto, or a list such as [eager, bf16+fused], got 3 in"),
        (
            {"stacks": ["eager", "faster"]},
            "stacks: no stack has a part 'faster': write a sum of eager, channels_last, bf16,",
        ),
        (
            {"stacks": ["compiled+compiled_whole"]},
            "stacks: a stack has one way to compile: choose compiled or compiled_whole",
        ),
        (
            {"stacks": ["eager", "bf16+fused"]},
            "stacks: bf16+fused computes with fewer bits than the script says: write precision: "
            "any beside it, or leave it out",
        ),
        (
            {"stacks": "auto", "strategy": "parameter_server"},
            "stacks: with servers each script computes its steps as it is written: leave stacks "
            "out, or write strategy: all_reduce",
        ),
        (
            {"stacks": "auto", "framework": "tensorflow"},
            "stacks: stacks are PyTorch's: leave stacks out with framework: tensorflow",
        ),
        (
            {"stacks": "auto", "run": {"command": ["scavenger", "agent", "run", "--", "python"]}},
            "run: a script under agent run computes its steps as it is written: leave stacks out,",
        ),
        (
            {"limits": {"layout": {"micro_batches": 4}}},
            "limits.layout.micro_batches: 4 need stages that they follow each other through: write",
        ),
        (
            {"limits": {"layout": {"pipeline": 0}}},
            "limits.layout.pipeline: must be at least 1, got 0",
        ),
        (
            {"limits": {"layout": {"pipeline": "1..4", "cuts": ["c"]}}},
            "limits.layout.cuts: belong to one number of stages: write pipeline: 2, or leave them",
        ),
        (
            {"limits": {"layout": {"pipeline": "1..64", "tensor": "1..64"}}},
            "limits.layout: pipeline, tensor and shard make 4096 layouts, more than 256: allow fe",
        ),
        (
            {"limits": {"layout": {"pipeline": 2, "micro_batches": "all"}}},
            'limits.layout.micro_batches: must be auto or a whole number, got "all"',
        ),
        (
            {"limits": {"process_gib": 16.0}},
            "limits.process_gib: is the memory that layouts share: write layout: auto beside it",
        ),
        (
            {"limits": {"layout": {"pipeline": 2, "cuts": ["c"]}, "process_gib": 16.0}},
            "limits.process_gib: lets a profile of the model say where it is cut: leave layout.cu",
        ),
        (
            {"limits": {"layout": {"schedule": "gpipe"}}},
            "limits.layout.schedule: gpipe needs stages: write pipeline: 2 or more beside it, or l",
        ),
        (
            {"limits": {"layout": {"pipeline": "1..2", "schedule": "gpipe"}}},
            "limits.layout.schedule: gpipe is of one layout: write one number of each beside it",
        ),
        (
            {"limits": {"layout": {"pipeline": 2, "schedule": "gpipe"}, "process_gib": 1.0}},
            "limits.process_gib: is not compared with gpipe: leave layout.schedule out, or this",
        ),
        (
            {"limits": {"layout": {"pipeline": 2, "schedule": "2f2b"}}},
            'limits.layout.schedule: must be 1f1b, gpipe or interleaved, got "2f2b"',
        ),
        (
            {"limits": {"layout": {"pipeline": 2, "micro_batches": 3, "schedule": "interleaved"}}},
            "limits.layout.schedule: interleaved needs as many micro_batches as stages, or a mult",
        ),
        (
            {"limits": {"layout": {**INTERLEAVED, "shard": 2}}},
            "limits.layout.schedule: interleaved is of stages of one process each: leave tensor an",
        ),
        (
            {"limits": {"layout": {**INTERLEAVED, "chunks": 1}}},
            "limits.layout.chunks: must be at least 2, got 1",
        ),
        (
            {"limits": {"layout": {"pipeline": 2, "chunks": 2}}},
            "limits.layout.chunks: 2 in each stage are interleaved: write schedule: interleaved be",
        ),
        (
            {"limits": {"layout": {**INTERLEAVED, "cuts": ["c"]}}},
            "limits.layout.cuts: c makes 2 stages where there are 4: write the first module of ea",
        ),
        (
            {"limits": {"layout": 2}},
            "limits.layout: must be auto, 1 or a mapping, got 2: write e.g. {pipeline: 1..4}",
        ),
        (
            {"limits": CUT, "strategy": "parameter_server"},
            "run: with servers each worker has the whole model: leave limits.layout out, or write",
        ),
        (
            {"limits": CUT, "framework": "tensorflow"},
            "run: layouts are PyTorch's: leave limits.layout or strategy out wi",
        ),
        (
            {"limits": CUT, "stacks": "auto"},
            "run: stacks change the whole model and a layout cuts it: leave one of stacks and",
        ),
        (
            {"limits": CUT, "run": {"command": ["scavenger", "agent", "run", "--", "python"]}},
            "run: a script under agent run makes its own passes, so its model cannot be shared:",
        ),
        ({"precision": "low"}, 'precision: must be script or any, got "low"'),
        ({"lr_scaling": []}, "lr_scaling: must be none, linear, sqrt or adascale, got a list"),
        (
            {"lr_scaling": {"rule": "linaer"}},
            'lr_scaling.rule: must be none, linear, sqrt or adascale, got "linaer"',
        ),
        ({"lr_scaling": {"warm_up": 5}}, "lr_scaling.rule: is missing: write e.g. rule: linear"),
        (
            {"lr_scaling": {"rule": "linear", "warm_up": -1}},
            "lr_scaling.warm_up: must be at least 0, got -1",
        ),
        (
            {"lr_scaling": {"rule": "linear", "warmup": 1}},
            'lr_scaling.warmup: unknown key "warmup": did you mean warm_up?',
        ),
        ({"level": "watch"}, 'level: must be observe, advise or control, got "watch"'),
        (
            {"strategy": "ps"},
            "strategy: must be all_reduce, parameter_server, downpour, sandblaster or e.g. "
            '{parameter_server: {servers: 2}} or {pipedream: {stages: [1, 1]}}, got "ps"',
        ),
        ({"strategy": {}}, "strategy: names no strategy: write all_reduce, parameter_server, dow"),
        (
            {"strategy": "pipedream"},
            "strategy: pipedream needs the processes of each stage: write e.g. {pipedream: {stag",
        ),
        (
            {"strategy": {"pipedream": {"stages": [2]}}, "limits": ONE},
            "strategy.pipedream.stages: [2] must have 2 to 64 stages: write e.g. [1, 1], or leave",
        ),
        (
            {"strategy": {"pipedream": {"stages": "many"}}, "limits": ONE},
            "strategy.pipedream.stages: must be auto or the processes of each stage, got "
            '"many": write e.g. [1, 1]',
        ),
        (
            {"strategy": {"pipedream": {"stages": [1, "one"]}}, "limits": ONE},
            'strategy.pipedream.stages.1: must be a whole number, got "one": write e.g. 64',
        ),
        (
            {"strategy": {"pipedream": {"stages": "auto", "cuts": ["a"]}}, "limits": ONE},
            "strategy.pipedream.cuts: belong to stages that are written down: leave cuts out, or "
            "write the processes of each stage in place of auto",
        ),
        (
            {"strategy": {"pipedream": {"stages": "auto"}}, "limits": {**ONE, "layout": "auto"}},
            "strategy: pipedream says how the model is cut: leave one of strategy and limits.layo",
        ),
        (
            {"strategy": PIPELINE, "limits": {**ONE, "process_gib": 16.0}},
            "limits.process_gib: is the memory that layouts share: write strategy: {pipedream: {s",
        ),
        (
            {"strategy": {"pipedream": {"stages": [2, 1], "cuts": ["a", "b"]}}, "limits": ONE},
            "strategy.pipedream.cuts: a, b makes 3 stages where there are 2: write the first modu",
        ),
        (
            {"strategy": {"pipedream": {"stages": [1, 1], "cuts": [3]}}, "limits": ONE},
            "strategy.pipedream.cuts.0: must be text, got 3: put it in quotes",
        ),
        (
            {"strategy": {"pipedream": {"stages": [1, 1], "vertical_sync": 1}}, "limits": ONE},
            "strategy.pipedream.vertical_sync: must be true or false, got 1",
        ),
        (
            {"strategy": {"pipedream": {"stages": [1, 1], "vertical_sink": True}}, "limits": ONE},
            'strategy.pipedream.vertical_sink: unknown key "vertical_sink": did you mean vertical_',
        ),
        (
            {"strategy": {"pipedream": {"stages": [2, 1]}}},
            "strategy: pipedream never waits, so no law tells which configuration is best, and the",
        ),
        (
            {
                "strategy": "sandblaster",
                "limits": {
                    **ONE,
                    "memory": {"machine_gib": 8, "fixed_gib": 1, "gib_per_sample": 0.01},
                },
            },
            "strategy: a worker of sandblaster holds one portion at a time, not its part of the b",
        ),
        (
            {"strategy": PIPELINE, "limits": {"workers": 2, "batch": 64}},
            "strategy: the stages of pipedream are processes of one machine: write workers: 1, and",
        ),
        (
            {"strategy": PIPELINE, "limits": {**ONE, "layout": {"tensor": 2}}},
            "strategy: pipedream says how the model is cut: leave one of strategy and limits.layo",
        ),
        (
            {"strategy": PIPELINE, "limits": ONE, "nan_guard": "on"},
            "nan_guard: stages of an asynchronous pipeline cannot skip a step together: leave nan",
        ),
        (
            {"strategy": PIPELINE, "limits": ONE, "stacks": ["fused"]},
            "stacks: stacks change the whole model and a pipeline cuts it: leave one of stacks an",
        ),
        (
            {"strategy": PIPELINE, "limits": ONE, "lr_scaling": "linear"},
            "lr_scaling: pipedream never changes its batch, so there is nothing to scale: leave i",
        ),
        (
            {"strategy": PIPELINE, "limits": ONE, "framework": "tensorflow"},
            "run: layouts are PyTorch's: leave limits.layout or strategy out with framework: tens",
        ),
        (
            {"limits": {"layout": {"pipeline": 3, "cuts": ["c"]}}},
            "limits.layout.cuts: c makes 2 stages where there are 3: write the first module of ea",
        ),
        (
            {"strategy": {"parameter_server": {}, "downpour": {}}},
            "strategy: parameter_server and downpour exclude each other: write one of them",
        ),
        (
            {"strategy": {"sandblaster": {}, "downpour": {}}},
            "strategy: downpour and sandblaster exclude each other: write one of them",
        ),
        (
            {"strategy": "sandblaster"},
            "strategy: sandblaster never waits, so no law tells which configuration is best, and "
            "the limits leave 16: write one number for limits.workers and one for limits.batch, "
            "e.g. workers: 4, batch: 256",
        ),
        (
            {"strategy": {"sandblaster": {"history": 0}}, "limits": {"workers": 2, "batch": 64}},
            "strategy.sandblaster.history: must be at least 1, got 0",
        ),
        (
            {"strategy": {"sandblaster": {"n_push": 2}}, "limits": {"workers": 2, "batch": 64}},
            'strategy.sandblaster.n_push: unknown key "n_push": it belongs in strategy.downpour',
        ),
        (
            {
                "strategy": "sandblaster",
                "limits": {"workers": 2, "batch": 64},
                "lr_scaling": "linear",
            },
            "lr_scaling: sandblaster never changes its batch, so there is nothing to scale: leave",
        ),
        (
            {
                "strategy": "sandblaster",
                "limits": {"workers": 2, "batch": 64},
                "framework": "tensorflow",
            },
            "framework: sandblaster is PyTorch's: leave framework out, or write strategy: downpour",
        ),
        (
            {
                "strategy": "sandblaster",
                "limits": {"workers": 2, "batch": 64},
                "stacks": "auto",
            },
            "stacks: with servers each script computes its steps as it is written: leave stacks o",
        ),
        (
            {
                "strategy": "sandblaster",
                "limits": {"workers": 2, "batch": 64, "layout": {"pipeline": 2}},
            },
            "run: with servers each worker has the whole model: leave limits.layout out, or write",
        ),
        (
            {
                "strategy": "sandblaster",
                "limits": {"workers": 2, "batch": 64},
                "nan_guard": "on",
            },
            "nan_guard: servers step by themselves and cannot skip a step together: leave nan_gua",
        ),
        (
            {
                "strategy": "sandblaster",
                "limits": {"workers": 2, "batch": 64},
                "run": {"checkpoints": {"every": "60s"}},
            },
            "run: sandblaster writes no checkpoints: leave run.checkpoints out, and let the script",
        ),
        (
            {
                "strategy": "sandblaster",
                "limits": {"workers": 2, "batch": 64},
                "run": {"command": ["scavenger", "agent", "run", "--", "train"]},
            },
            "run: a script under agent run does not train by sandblaster: leave strategy out, or l",
        ),
        (
            {"strategy": {"parameter_server": None}},
            "strategy.parameter_server: has no value: write e.g. {servers: 2, priced: true}",
        ),
        (
            {"strategy": {"parameter_sever": {}}},
            'strategy.parameter_sever: unknown key "parameter_sever": did you mean parameter_serve',
        ),
        (
            {"strategy": {"parameter_server": {"servers": 0}}},
            "strategy.parameter_server.servers: must be at least 1, got 0",
        ),
        (
            {"strategy": {"parameter_server": {"priced": 1}}},
            "strategy.parameter_server.priced: must be true or false, got 1",
        ),
        (
            {"strategy": {"parameter_server": {"n_push": 2}}},
            'strategy.parameter_server.n_push: unknown key "n_push": it belongs in strategy.downp',
        ),
        (
            {"strategy": "downpour"},
            "strategy: downpour never waits, so no law tells which configuration is best, and "
            "the limits leave 16: write one number for limits.workers and one for limits.batch, "
            "e.g. workers: 4, batch: 256",
        ),
        (
            {
                "strategy": "downpour",
                "limits": {"workers": 2, "batch": 64},
                "lr_scaling": "linear",
            },
            "lr_scaling: downpour never changes its batch, so there is nothing to scale: leave it",
        ),
        (
            {
                "strategy": "downpour",
                "limits": {"workers": 2, "batch": 64},
                "run": {"checkpoints": {"every": "60s"}},
            },
            "run: downpour writes no checkpoints: leave run.checkpoints out, and let the script sa",
        ),
        (
            {
                "strategy": "downpour",
                "limits": {"workers": 2, "batch": 64},
                "run": {"command": ["scavenger", "agent", "run", "--", "train"]},
            },
            "run: a script under agent run does not train by downpour: leave strategy out, or let ",
        ),
        (
            {
                "strategy": {"downpour": {"n_push": 2}},
                "framework": "tensorflow",
                "limits": {"workers": 2, "batch": 64},
                "run": {"command": ["scavenger", "agent", "run", "--", "train"]},
            },
            "run: a script under agent run pushes and fetches in each step: leave n_push and n_fet",
        ),
        (
            {
                "strategy": "parameter_server",
                "framework": "pytorch",
                "run": {"command": ["scavenger", "agent", "run", "--", "train"]},
            },
            "run: under agent run only scripts of TensorFlow have parameter servers: write framewo",
        ),
        (
            {
                "strategy": "parameter_server",
                "price": {"per_hour": "1 USD/h", "servers": {"count": 2, "per_hour": "1 USD/h"}},
            },
            "price: pays 2 servers but strategy has 1: write the same count",
        ),
        (
            {
                "strategy": {"parameter_server": {"servers": 2, "priced": False}},
                "price": {"per_hour": "1 USD/h", "servers": {"count": 2, "per_hour": "1 USD/h"}},
            },
            "price: servers are paid here but strategy says priced: false: leave one of the two",
        ),
        (
            {"run": {"checkpoints": {"every": 60}}},
            'run.checkpoints.every: 60 has no unit: write a unit, e.g. "90s"',
        ),
        (
            {"run": {"checkpoints": {"directory": "a"}}},
            'run.checkpoints.directory: "a" is not absolute: write e.g. /srv/train',
        ),
        ({"target": {"goal": float("nan")}}, "target.goal: NaN is not allowed: write a finite num"),
        ({"target": {"goal": float("inf")}}, "target.goal: infinity is not allowed: write a finit"),
        ({"target": {"goal": "0.97"}}, 'target.goal: must be a number, got "0.97": write e.g. 0.9'),
        ({"target": {"goal": None}}, "target.goal: has no value: write e.g. 0.97"),
        ({"target": {"max_epochs": 0}}, "target.max_epochs: must be at least 1e-09, got 0"),
        (
            {"target": {"max_epochs": 5e-324}},
            "target.max_epochs: must be at least 1e-09, got 5e-324",
        ),
        (
            {"target": {"max_epochs": 2e6}},
            "target.max_epochs: must be at most 1000000, got 2000000",
        ),
        ({"target": {"at_batch": 0}}, "target.at_batch: must be at least 1, got 0"),
        ({"target": {"at_batch": True}}, "target.at_batch: must be a whole number, got true: writ"),
        ({"target": {"metric": ""}}, 'target.metric: must be text of 1 to 200 characters, got ""'),
        (
            {"target": {"direction": "up"}},
            'target.direction: must be at_least or at_most, got "up"',
        ),
        ({"target": {"epochs": 3}}, f"target: epochs and metric exclude each other: {TARGETS}"),
        ({"target": []}, "target: must be a mapping, got a list: write e.g. {epochs: 30, at_bat"),
        ({"limits": {"max_cots": "3 USD"}}, 'unknown key "max_cots": did you mean max_cost?'),
        ({"limits": {"command": "x"}}, 'limits.command: unknown key "command": it belongs in run'),
        ({"max_cost": "3 USD"}, 'max_cost: unknown key "max_cost": it belongs in limits'),
        (
            {"limits": {"zzz": 1}},
            'limits.zzz: unknown key "zzz": '
            "the keys here are max_cost, max_time, workers, worker_step, batch, memory",
        ),
        (
            {"limits": {"max_cost": 3.4}},
            'limits.max_cost: 3.4 has no unit: write a unit, e.g. "3.4',
        ),
        ({"limits": {"max_cost": "0 USD"}}, "limits.max_cost: must be above zero, got 0"),
        ({"limits": {"max_time": 90}}, 'limits.max_time: 90 has no unit: write a unit, e.g. "90s"'),
        (
            {"limits": {"max_time": None}},
            "limits.max_time: has no value: write e.g. 3h12m, or leave the key out",
        ),
        (
            {"limits": {"workers": "4..1"}},
            "limits.workers: range 4..1 is empty: write the low end first, e.g. 1..4",
        ),
        ({"limits": {"workers": "four"}}, 'limits.workers: "four" is no range: write e.g. 1..4'),
        ({"limits": {"workers": "0..4"}}, "limits.workers: must be at least 1, got 0"),
        ({"limits": {"workers": 1025}}, "limits.workers: must be at most 1024, got 1025"),
        ({"limits": {"workers": []}}, "limits.workers: must list 1 to 400 whole numbers, got 0"),
        ({"limits": {"workers": [1, 2.5]}}, "limits.workers.1: must be a whole number, got 2.5"),
        (
            {"limits": {"workers": True}},
            "limits.workers: must be a range, a whole number or a list of them, got true: "
            "write e.g. 1..4",
        ),
        ({"limits": {"worker_step": 0}}, "limits.worker_step: must be at least 1, got 0"),
        (
            {"limits": {"workers": 4, "worker_step": 2}},
            "limits.worker_step: 2 needs a range: write workers as e.g. 4..24, or leave it out",
        ),
        ({"limits": {"batch": 2**24 + 1}}, "limits.batch: must be at most 16777216, got 16777217"),
        (
            {"limits": {"workers": "8..9", "batch": 4}},
            "limits.batch: largest batch 4 is below the fewest workers 8, so no configuration is "
            "left: write a batch of at least 8, or at most 4 workers",
        ),
        (
            {"limits": {"workers": "8..9", "batch": "4..64"}},
            "limits.batch: smallest batch 4 is below the fewest workers 8, and each worker needs a "
            "sample: start batch at 8 or more, or workers at 4 or fewer",
        ),
        (
            {"limits": {"workers": "1..101", "batch": [200, 300, 400, 500]}},
            "limits.batch: 101 worker counts and 4 batches make 404 configurations, "
            "more than 400: raise worker_step or list fewer",
        ),
        (
            {"limits": {"memory": {**ROOM, "machine_gib": 2.05}}},
            "limits.memory: no configuration fits: the smallest part of a batch, 32 on 4 workers, "
            "is 8 samples and needs 2.08 GiB of the 2.05 GiB of a machine: allow larger machines, "
            "more workers or a smaller batch",
        ),
        ({"limits": {"memory": {**ROOM, "machine_gib": 0}}}, "machine_gib: must be above 0, got 0"),
        (
            {"limits": {"memory": None}},
            "limits.memory: has no value: write e.g. {machine_gib: 16, fixed_gib: 2, ",
        ),
        (
            {"limits": {"memory": {"fixed_gib": 2, "gib_per_sample": 0.01}}},
            "limits.memory.machine_gib: is missing: write e.g. machine_gib: 16",
        ),
        ({"limits": {"memory": {**ROOM, "fixed_gb": 2}}}, "did you mean fixed_gib?"),
        (
            {"run": {"command": "python train.py 'a b'"}},
            "run.command: \"python train.py 'a b'\" is a string: write a list, "
            'e.g. ["python", "train.py", "a b"]',
        ),
        ({"run": {"command": []}}, 'run.command: names no program: write e.g. ["python", "train.p'),
        ({"run": {"command": ["sh", 30]}}, "run.command.1: must be text, got 30: put it in quotes"),
        ({"run": {"command": 3}}, 'run.command: must be a list, got 3: write e.g. ["python", "tr'),
        ({"run": {"directory": "a"}}, 'run.directory: "a" is not absolute: write e.g. /srv/train'),
        ({"run": {"env": {"HF_TOKEN": "x"}}}, f'run.env.HF_TOKEN: "HF_TOKEN" {SECRET}'),
        ({"run": {"env": {"db_password": "x"}}}, f'run.env.db_password: "db_password" {SECRET}'),
        (
            {"run": {"env": {"SCAVENGER_JOB": "x"}}},
            'run.env.SCAVENGER_JOB: "SCAVENGER_JOB" is set by Scavenger: '
            "choose a name without SCAVENGER_",
        ),
        ({"run": {"env": {"A B": "x"}}}, 'run.env.A B: "A B" names no variable: write letters, di'),
        (
            {"run": {"env": {"PIN": 1234}}},
            "run.env.PIN: must be text, got something else: put it in quotes",
        ),
        ({"run": {"env": "A=b"}}, "run.env: must be a mapping, got something else: write e.g. {LO"),
    ],
)
def test_a_wrong_document_says_what_to_write(sections, message):
    (found,) = problems(validate_job, changed(**sections))
    assert message in found


def test_memory_that_holds_nothing_is_shown_where_it_is_written():
    memory = "{machine_gib: 1, fixed_gib: 2, gib_per_sample: 0.01}"
    text = GOOD.replace("batch: 32..256}", f"batch: 32..256, memory: {memory}}}")
    (found,) = problems(parse_job, text)
    assert found.startswith("line 3, column 41: limits.memory: no configuration fits")


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ({}, f"target: says neither epochs nor metric: {TARGETS}"),
        ({"at_batch": 64}, f"target: says neither epochs nor metric: {TARGETS}"),
        ({"epochs": 3}, "target.at_batch: is missing: write e.g. at_batch: 64"),
        (
            {"epoch": 3, "at_batch": 64},
            'target.epoch: unknown key "epoch": did you mean epochs?',
        ),
        (
            {"metrc": "a", "goal": 1, "max_epochs": 3},
            'target.metrc: unknown key "metrc": did you mean metric?',
        ),
        ({"metric": "a", "goal": 1}, "target.max_epochs: is missing: write e.g. max_epochs: 120"),
    ],
)
def test_the_keys_tell_which_target_is_meant(target, message):
    assert problems(validate_job, changed() | {"target": target}) == [message]


def test_everything_wrong_is_said_at_once_in_order_of_appearance():
    text = """\
model:
  key: a b
nmae: x
target: {metric: accuracy, goal: .nan, max_epochs: 0}
limits:
  max_cots: 3.40 USD
  max_cost: 3.40
  workers: *most
  batch: [32, x]
  batch: 32
price: 0.1
run:
  env: {HF_TOKEN: a}
"""
    found = [message.partition(": ")[0] for message in problems(parse_job, text)]
    paths = [problem.path for problem in _caught(text)]
    assert paths == [
        "model.dataset_size",
        "model.key",
        "nmae",
        "target.goal",
        "target.max_epochs",
        "limits.max_cots",
        "limits.max_cost",
        "limits.workers",
        "limits.batch",
        "price",
        "run.command",
        "run.env.HF_TOKEN",
    ]
    assert found[1:4] == ["line 2, column 3", "line 3, column 1", "line 4, column 28"]


def _caught(text):
    with pytest.raises(InvalidDocument) as caught:
        parse_job(text)
    return caught.value.problems


def test_without_positions_problems_keep_the_order_of_the_document():
    document = {"run": {"command": []}, **changed(limits={"batch": 0}, model={"key": ""})}
    document["run"] = {"command": []}
    found = [message.partition(":")[0] for message in problems(validate_job, document)]
    assert found == ["run.command", "model.key", "limits.batch"]


def test_a_flood_of_problems_is_cut():
    found = problems(parse_job, "run: {command: [" + "1, " * 5000 + "]}")
    assert len(found) == 101
    assert found[-1] == "there are more problems: solve these first"


def test_the_same_document_as_json_is_the_same_job():
    document = json.dumps(changed(), indent="\t")
    assert parse_job(document, "json") == parse_job(GOOD)
    assert problems(parse_job, document.replace("0.97", "NaN"), "json") == [
        "line 8, column 3: target.goal: NaN is not allowed: write a finite number"
    ]


def test_json_numbers_stay_numbers():
    assert scan_json('{"a": 1e3, "b": [-0.5, 7]}') == ParsedDocument(
        {"a": 1000.0, "b": [-0.5, 7]},
        {(): (1, 1), ("a",): (1, 2), ("b",): (1, 12), ("b", 0): (1, 18), ("b", 1): (1, 24)},
        (),
    )


def test_yaml_has_no_surprises():
    read = scan_yaml("a: no\nb: 1e3\nc: 2020-01-01\nd: 010\n1: 'x'\ne: [1:30, ~, true]")
    assert read.value == {
        "a": "no",
        "b": 1000.0,
        "c": "2020-01-01",
        "d": "010",
        "1": "x",
        "e": ["1:30", None, True],
    }
    assert read.problems == ()
    assert read.positions["e", 1] == (6, 11)


DEEP = "nested too deep: write at most 32 lists and mappings inside each other"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1, column 1: the document is empty: write model, target, limits, run"),
        ("- a", "line 1, column 1: must be a mapping, got a list: write model, target, limits, ru"),
        ("a: [1", "line 1, column 6: cannot be read as YAML: expected ',' or ']', but got '<strea"),
        ("a: b: c", "line 1, column 5: cannot be read as YAML: mapping values are not allowed her"),
        ("a:\n\tb: 1", "cannot start any token: indent with spaces"),
        ("a: \x01", "line 1, column 4: cannot be read as YAML: character \\x01 is not allowed"),
        ("a: \x00", "line 1, column 4: the text holds a NUL character or half of a surrogate pair"),
        ("\na: \ud800", "line 2, column 4: the text holds a NUL character or half of a surrogate"),
        ('a: "\\ud800"', "line 1, column 1: a: holds a NUL character or half of a surrogate pair"),
        ('"\\0": 1', "line 1, column 1: \\x00: key holds a NUL character or half of a surrogate"),
        ('"\\UFFFFFFFF"', "cannot be read as YAML: it holds an escape or number that is out of ra"),
        ("a: 1\na: 2", 'line 2, column 1: a: duplicate key "a": keep one of them'),
        ("a: &x 1\nb: *x", 'line 2, column 1: b: alias "x" is not allowed: write the value out'),
        ("a: !!python/object:os.x b", 'a: tag "tag:yaml.org,2002:python/object:os.x" is not allo'),
        ("a: 1\n---\nb: 2", "line 2, column 1: a second document starts here: write one document"),
        ("? [a]\n: b", "line 1, column 3: a key must be text, not a list, a mapping or an alias"),
        ("a: -.INF", "line 1, column 1: a: -infinity is not allowed: write a finite number"),
        ("a: 1e999", "line 1, column 1: a: infinity is not allowed: write a finite number"),
        ("[" * 5000, f"line 1, column 33: {DEEP}"),
        (" " * (32 * 1024 + 1), "the text has 32769 bytes: a document has at most 32768 bytes"),
        ("price: " + "x" * 5000, f'"{"x" * 79}…" is no amount of money'),
        ('price: "\\e[31m"', '"\\x1b[31m" is no amount of money'),
    ],
)
def test_unusable_yaml_is_refused(text, message):
    assert message in "\n".join(problems(parse_job, text))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1, column 1: cannot be read as JSON: Expecting value"),
        ('{"a": 1,\n}', "line 2, column 1: cannot be read as JSON: Expecting property name enclos"),
        ('{"a": NaN}', "line 1, column 2: a: NaN is not allowed: write a finite number"),
        ('{"a": -Infinity}', "line 1, column 2: a: -infinity is not allowed: write a finite num"),
        ('{"a": 1e999}', "line 1, column 2: a: infinity is not allowed: write a finite number"),
        ('{"a": 1, "a": 2}', 'line 1, column 10: a: duplicate key "a": keep one of them'),
        ('{"a": "\\u0000"}', "line 1, column 2: a: holds a NUL character or half of a surrogate"),
        ("[" * 40 + "]" * 40, DEEP),
        ("[" * 30000, DEEP),
        ("9" * 5000, "infinity is not allowed: write a finite number"),
    ],
)
def test_unusable_json_is_refused(text, message):
    def read():
        found = scan_json(text)
        if found.problems:
            raise InvalidDocument(found.problems)

    assert message in "\n".join(problems(read))


def test_a_value_parsed_elsewhere_is_checked_too():
    assert problems(validate_job, changed(run={1: "x"})) == ["run.1: key 1 is no text: quote it"]
    (found,) = problems(validate_job, changed(run={10**5000: "x"}))
    assert found == "run.a number beyond 64 bits: key a number beyond 64 bits is no text: quote it"
    (found,) = problems(validate_job, changed(model={"dataset_size": 10**5000}))
    assert found.startswith("model.dataset_size: a number beyond 64 bits is too large")
    (found,) = problems(validate_job, changed(model={"key": {1}}))
    assert found == "model.key: a set is no JSON value: write text, a number, a list or a mapping"


def test_positions_can_be_handed_in():
    with pytest.raises(InvalidDocument) as caught:
        validate_job(changed(price=1), {("price",): (7, 3)})
    assert caught.value.problems == (
        DocumentProblem("price", '1 has no unit: write a unit, e.g. "0.13402 USD/h"', 7, 3),
    )


def test_a_spec_is_frozen_and_writes_what_was_written():
    spec = parse_job(GOOD)
    assert spec.document()["limits"] == {"workers": "1..4", "worker_step": 1, "batch": "32..256"}
    assert spec.limits.workers == Bounds(1, 4)
    assert JobSpec.model_json_schema()["required"] == ["model", "target", "limits", "run"]
    with pytest.raises(ValueError, match="frozen"):
        spec.name = "other"
