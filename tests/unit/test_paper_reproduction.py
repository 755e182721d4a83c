import json
import re

import pytest
import torch

from tests.paper import page, runs
from tests.paper.evidence import gather
from tests.paper.figures import FIGURES
from tests.paper.runs import ACTUAL, EARLIER, SEARCHED
from tests.paper.training import train
from tests.paper.workload import WORKLOADS


@pytest.fixture
def one_core():
    """Networks this small are slower on several cores, and wait for them where others compute."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def all_runs():
    return runs.load()


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda workload: workload.title)
def test_the_kept_runs_are_complete(all_runs, workload):
    found = all_runs[workload.setting.name]
    usual = workload.recipes[0].name
    for batch in workload.space.global_batches:
        own = found.of(usual, batch)
        assert sorted(run.seed for run in own) == sorted(EARLIER + ACTUAL)
        assert found.epochs(usual, batch, workload.target) is not None
    assert {seen.config for seen in found.frozen} == set(workload.space)
    for seed in SEARCHED:
        assert {o.config for o in found.search("full", seed)} == set(workload.space)
        assert {o.config for o in found.search("partial", seed)} == set(workload.space.corners())


def test_the_kept_runs_are_small_and_survive_writing(all_runs, tmp_path):
    copy = tmp_path / "runs.json"
    runs.save(all_runs, copy)
    assert runs.load(copy) == all_runs
    assert json.loads(copy.read_text()) == json.loads(runs.FILE.read_text())
    assert runs.FILE.stat().st_size < 100_000


@pytest.mark.usefixtures("one_core")
def test_training_once_more_gives_what_was_kept(all_runs):
    workload = WORKLOADS[1]
    recipe = workload.recipe("hot 0.4")
    kept = next(run for run in all_runs[workload.setting.name].of(recipe.name, 512))
    again = train(workload, recipe, 512, kept.seed)
    pairs = zip(again.levels, kept.levels, strict=True)
    # Another processor rounds otherwise, which training amplifies.
    assert all(own.epochs == pytest.approx(old.epochs, rel=0.2) for own, old in pairs)


def test_the_table_of_the_page_follows_from_the_kept_runs(all_runs):
    assert page.written_table() == page.table(gather(all_runs))


def test_the_page_shows_every_figure_once():
    shown = re.findall(r"\(pictures/paper/([\w-]+)\.png\)", page.PAGE.read_text())
    assert sorted(shown) == sorted(FIGURES)
    sizes = {name: (page.PICTURES / f"{name}.png").stat().st_size for name in FIGURES}
    assert max(sizes.values()) < 80_000
