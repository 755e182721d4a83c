import json
import string
from decimal import Decimal

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from scavenger.errors import InvalidDocument
from scavenger.job.fields import (
    exact_duration,
    format_duration,
    format_money,
    format_price,
    read_duration,
    read_money,
    read_price,
)
from scavenger.job.limits import Limits
from scavenger.job.parser import scan_json, scan_yaml
from scavenger.job.run import CheckpointsSpec, RunSpec
from scavenger.job.spec import EpochsTarget, JobSpec, MetricTarget, ModelSpec
from scavenger.job.training import (
    DownpourSpec,
    LearningRateSpec,
    NamedStrategySpec,
    SandblasterSpec,
)
from scavenger.job.validation import parse_job, validate_job

SECTIONS = (
    JobSpec,
    ModelSpec,
    EpochsTarget,
    MetricTarget,
    Limits,
    RunSpec,
    CheckpointsSpec,
    NamedStrategySpec,
    DownpourSpec,
    SandblasterSpec,
    LearningRateSpec,
)
KEYS = sorted({key for section in SECTIONS for key in section.model_fields})
LIMITS = {"max_examples": 150, "deadline": None}

any_text = st.text(st.characters(codec=None), max_size=12)
keys = st.sampled_from(KEYS) | any_text
leaves = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(min_value=2**62)
    | st.floats()
    | any_text
    | st.sampled_from(["4..24", "4..1", "3.40 USD", "0.1 USD/h", "90s", "knee", "at_most", "/a"])
)
anything = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=6),
    max_leaves=25,
)

positive = st.floats(1e-3, 1e6)
batches = st.integers(1, 2**24)
letters = "".join(
    sorted(set(string.ascii_letters + "_") - set("kKsS"))
)  # no TOKEN, KEY, SECRET, PASSWORD
names = st.text(letters, min_size=1, max_size=9).map(lambda name: f"V{name}")
printable = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=9)
targets = st.fixed_dictionaries({"epochs": positive, "at_batch": batches}) | st.fixed_dictionaries(
    {
        "metric": printable.filter(bool),
        "goal": st.floats(-1e15, 1e15),
        "max_epochs": positive,
    },
    optional={"direction": st.sampled_from(["at_least", "at_most"]), "at_batch": batches},
)
limits = st.fixed_dictionaries(
    {
        "workers": st.sampled_from([1, [4, 2], "1..16", "3..9"]),
        "batch": st.sampled_from([64, [32, 48], "16..100", "9..9"]),
    },
    optional={
        "max_cost": st.decimals("0.01", 10**6, places=4).map(format_money),
        "max_time": st.floats(1e-3, 3e8).map(exact_duration),
    },
)
rules = st.sampled_from(["none", "linear", "sqrt", "adascale"])
server = {"servers": st.integers(1, 64), "priced": st.booleans()}
servers = st.fixed_dictionaries(
    {"parameter_server": st.fixed_dictionaries({}, optional=server)},
)
checkpoints = st.fixed_dictionaries(
    {},
    optional={
        "every": st.floats(1e-3, 3e8).map(exact_duration),
        "keep": st.integers(1, 1000),
        "directory": printable.map(lambda path: f"/{path}"),
    },
)
documents = st.fixed_dictionaries(
    {
        "model": st.fixed_dictionaries(
            {
                "key": st.text(string.ascii_letters + "0./-_", min_size=1, max_size=200),
                "dataset_size": st.integers(1, 10**12),
            }
        ),
        "target": targets,
        "limits": limits,
        "price": st.decimals("0.00001", 10**4, places=5).map(format_price),
        "run": st.fixed_dictionaries(
            {"command": st.lists(printable.filter(bool), min_size=1, max_size=4)},
            optional={
                "directory": printable.map(lambda path: f"/{path}"),
                "env": st.dictionaries(names, printable, max_size=3),
                "checkpoints": checkpoints,
                "stall": st.floats(1e-3, 3e8).map(exact_duration),
                "drain": st.floats(1e-3, 3e8).map(exact_duration),
            },
        ),
    },
    optional={
        "objective": st.sampled_from(["knee", "cheapest", "fastest"]),
        "search": st.sampled_from(["auto", "none", "partial", "full"]),
        "level": st.sampled_from(["observe", "advise", "control"]),
        "strategy": st.sampled_from(["all_reduce", "parameter_server"]) | servers,
        "lr_scaling": rules
        | st.fixed_dictionaries({"rule": rules}, optional={"warm_up": st.floats(0, 1e6)}),
    },
)


def check_refusal(refused, below=""):
    assert refused.problems
    assert all(problem.path.startswith(below) for problem in refused.problems)
    for problem in refused.problems:
        assert problem.message
        str(problem).encode("utf-8")
        assert str(problem).isprintable()
        assert len(problem.message) < 400


@given(anything)
@example({"target": {1: 2}})
@settings(**LIMITS)
def test_any_value_is_a_job_or_an_invalid_document(value):
    try:
        assert isinstance(validate_job(value), JobSpec)
    except InvalidDocument as refused:
        check_refusal(refused)


@given(documents, st.data())
@settings(**LIMITS)
def test_a_good_document_with_anything_in_one_place_is_a_job_or_refused_there(document, data):
    key = data.draw(st.sampled_from(sorted(document)))
    section = document[key]
    if isinstance(section, dict) and data.draw(st.booleans()):
        inner = data.draw(st.sampled_from(sorted(section)))
        document = {**document, key: {**section, inner: data.draw(anything)}}
    else:
        document = {**document, key: data.draw(anything)}
    try:
        validate_job(document)
    except InvalidDocument as refused:
        check_refusal(refused, below=key)


MARKS = [*":-?[]{},#&*!|>'\"%@` \n\t\\", "\n  ", ": ", "- ", "---\n", "%YAML 1.1\n", "<<", "!!int "]
WORDS = ["\\UFFFFFFFF", "\\ud800", ".nan", "1e999", "\x00", "\ufeff", "\x85", "limits", "run", "a"]
yaml_pieces = st.lists(
    st.sampled_from(MARKS + WORDS) | any_text,
    max_size=25,
).map("".join)


@pytest.mark.parametrize("media", ["yaml", "json"])
@given(text=yaml_pieces | anything.map(lambda value: json.dumps(value)))
@settings(**LIMITS)
def test_any_text_is_a_job_or_an_invalid_document(media, text):
    try:
        assert isinstance(parse_job(text, media), JobSpec)
    except InvalidDocument as refused:
        check_refusal(refused)


@given(documents)
@settings(**LIMITS)
def test_a_spec_is_read_back_from_its_document(document):
    spec = validate_job(document)
    again = spec.document()
    assert validate_job(again) == spec
    assert validate_job(again).document() == again
    assert parse_job(json.dumps(again, allow_nan=False), "json") == spec
    assert parse_job(json.dumps(again), "yaml") == spec


finite = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**15), 10**15)
    | st.floats(allow_nan=False, allow_infinity=False)
    | printable,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(printable, inner, max_size=4),
    max_leaves=15,
)


@given(finite)
@settings(**LIMITS)
def test_json_reads_as_json_and_every_path_has_a_position(value):
    read = scan_json(json.dumps(value, indent=1))
    assert (read.value, read.problems) == (value, ())
    assert all(line >= 1 and column >= 1 for line, column in read.positions.values())


@given(finite)
@settings(**LIMITS)
def test_yaml_reads_json_alike(value):
    read = scan_yaml(json.dumps(value))
    assert (read.value, read.problems) == (value, ())


@given(st.floats(1e-3, 3e8))
def test_a_duration_is_read_back_exactly(seconds):
    assert read_duration(exact_duration(seconds)) == seconds


@given(st.floats(1e-3, 3e8))
def test_a_duration_for_people_is_close(seconds):
    assert read_duration(format_duration(seconds)) == pytest.approx(seconds, rel=0.5)


@given(st.decimals(0, 10**9, places=9))
def test_money_is_read_back_exactly(amount):
    assert read_money(format_money(amount)) == amount
    assert read_price(format_price(amount)) == amount
    assert format_money(amount) == format_money(Decimal(f"{amount:f}0"))
