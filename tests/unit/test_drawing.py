"""The picture of a curve: what a mark means is told by its shape, at the place of its figures."""

from __future__ import annotations

import sys
from io import BytesIO
from itertools import pairwise
from typing import Any
from xml.etree.ElementTree import Element, fromstring

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scavenger.cli.errors import ExtraNotInstalled
from scavenger.cli.png import draw_png
from scavenger.client.notebook import FIGURES, ShownCurve
from scavenger.drawing import draw_curve
from scavenger.plane import SHAPES, Plane, steps_through
from scavenger.schemas.curves import CurveView, LimitsView, PointView
from tests.unit.test_cli_rendering import config, curve_view, point

SVG = "{http://www.w3.org/2000/svg}"


def parse(curve: CurveView, title: str = "digits") -> Element:
    text = draw_curve(curve, title)
    assert "<script" not in text
    assert "http" not in text.replace("http://www.w3.org/2000/svg", ""), "nothing is fetched"
    return fromstring(text)


def marks(root: Element) -> dict[str, list[str]]:
    """The roles of each point, as its shapes say."""
    found = {}
    for group in root.iter(f"{SVG}g"):
        if name := group.get("data-point"):
            found[name] = [p.get("data-role", "") for p in group.iter(f"{SVG}path")]
    return found


def texts(root: Element) -> str:
    return "\n".join(each.text or "" for each in root.iter(f"{SVG}text"))


figures = st.floats(1e-9, 1e9) | st.integers(0, 9).map(float)


@st.composite
def points(draw: st.DrawFn) -> list[PointView]:
    places = draw(
        st.lists(
            st.tuples(st.integers(1, 9), st.sampled_from([32, 64, 128])),
            min_size=1,
            max_size=9,
            unique=True,
        )
    )
    found = []
    for place in places:
        time, cost, factor = draw(figures), draw(figures), draw(st.sampled_from([1.0, 1.3]))
        facts: dict[str, Any] = {"time": time, "time_low": time / factor, "cost": cost}
        facts |= {"time_high": time * factor, "cost_low": cost / factor}
        facts |= {"cost_high": cost * factor, "on_front": draw(st.booleans())}
        facts |= {"source": draw(st.sampled_from(["measured", "predicted", "extrapolated"]))}
        facts |= {"violations": draw(st.sampled_from([[], ["takes too long\x1b[2J"]]))}
        found.append(point(*place, **facts))
    return found


@settings(max_examples=60)
@given(points(), st.sampled_from(["total", "relative", "remaining"]), st.text(max_size=9))
def test_any_curve_is_a_document_whose_marks_stand_at_their_figures(
    shown: list[PointView], basis: str, title: str
) -> None:
    marked = config(shown[0].workers, shown[0].global_batch)
    limits = LimitsView(max_cost=float(shown[0].cost) or None, max_time=shown[0].time or None)
    curve = curve_view(
        points=shown, basis=basis, knee=marked, current=marked, chosen=marked, limits=limits
    )
    root, plane = parse(curve, title), Plane.around(curve)
    drawn = marks(root)
    assert set(drawn) == {p.id for p in shown if plane.holds(p)}
    for p in shown:
        if p.id not in drawn:
            continue
        assert drawn[p.id][-1] == ("infeasible" if p.violations else p.source)
        x, y = plane.place(p)
        low, high = (plane.time.low, plane.time.high)
        share = (p.time - low) / (high - low)
        wide = plane.time.last - plane.time.first
        assert x == pytest.approx(plane.time.first + share * wide, abs=1)
        expected = SHAPES[drawn[p.id][-1]](x, y, 1.25 if p.on_front else 1)
        (group,) = [g for g in root.iter(f"{SVG}g") if g.get("data-point") == p.id]
        assert [path.get("d") for path in group.iter(f"{SVG}path")][-1] == expected
    assert draw_curve(curve, title) == draw_curve(curve, title)


def test_each_role_has_its_own_shape_and_is_explained() -> None:
    curve = curve_view(
        points=[
            point(1, 32, source="measured", on_front=True),
            point(2, 32, source="predicted"),
            point(4, 32, source="extrapolated"),
            point(8, 32, violations=["takes too long"], time=3.4, cost=0.0004),
        ],
        knee=config(1, 32), chosen=config(1, 32), fastest=config(1, 32),
        cheapest=config(1, 32), start=config(1, 32), current=config(2, 32), runner_up=None,
    )  # fmt: skip
    root = parse(curve)
    assert marks(root) == {
        "k1-b32": ["knee", "measured"],
        "k2-b32": ["running", "predicted"],
        "k4-b32": ["extrapolated"],
        "k8-b32": ["infeasible"],
    }
    for words in (
        "measured",
        "predicted",
        "outside the probed range",
        "excluded by a limit",
        "knee",
    ):
        assert words in texts(root)
    style = next(root.iter(f"{SVG}style")).text or ""
    assert ".scv-extrapolated{stroke-dasharray" in style
    assert "prefers-color-scheme:dark" in style


def test_a_knee_that_is_not_sure_is_a_range() -> None:
    curve = curve_view(support=0.4, runner_up=config(3, 256))
    found = marks(parse(curve))
    assert [name for name, roles in found.items() if "unsure" in roles] == ["k2-b256", "k3-b256"]
    assert "knee" not in {role for roles in found.values() for role in roles}
    straight = marks(parse(curve_view(knee_bends=False)))
    assert not {role for roles in straight.values() for role in roles} & {"knee", "unsure"}


def test_the_front_is_a_step_and_limits_outside_the_picture_are_named_at_its_edge() -> None:
    curve = curve_view(limits=LimitsView(max_cost=9.0, max_time=7200.0))
    plane = Plane.around(curve)
    path = steps_through([(1.0, 9.0), (2.0, 4.0), (3.0, 5.0)], plane)
    pixels = [tuple(map(float, each.split(","))) for each in path]
    assert all(a[0] == b[0] or a[1] == b[1] for a, b in pairwise(pixels))
    shown = texts(parse(curve))
    assert "▴ max_cost $9.00" in shown
    assert "max_time 2h00m ▸" in shown


def test_a_reader_without_eyes_is_told_the_front_and_the_marks() -> None:
    root = parse(curve_view())
    described = root.find(f"{SVG}desc")
    assert described is not None
    assert (root.get("role"), root.get("aria-labelledby")) == (
        "img",
        f"{root.find(f'{SVG}title').get('id')} {described.get('id')}",  # type: ignore[union-attr]
    )
    assert "options on the front, from $" in (described.text or "")
    assert "knee K=2 B=256" in (described.text or "")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"points": [], "why": "nothing is measured yet"}, "No curve yet: nothing is measured yet"),
        ({"points": [point(1, 32, violations=["dear"])], "limits": None}, "excluded by a limit"),
        ({"points": [point(1, 32, on_front=True)]}, "fastest"),
    ],
)
def test_curves_without_a_front_or_of_one_point_are_drawn(changes: Any, words: str) -> None:
    marked = {"fastest": config(1, 32), "cheapest": None, "knee": None, "chosen": None}
    assert words in texts(parse(curve_view(**marked, **changes)))


def test_a_png_is_drawn_from_the_same_picture_with_its_words() -> None:
    import matplotlib.image

    image = matplotlib.image.imread(BytesIO(draw_png(curve_view(), "digits")))
    assert image.shape[:2] == (1040, 1600)
    title = image[20:56, 140:300, :3]
    assert (title < 0.4).any(), "the heading is written"


def test_without_the_extra_a_png_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "resvg_py", None)
    with pytest.raises(ExtraNotInstalled, match="A PNG needs resvg_py, or take -o svg") as caught:
        draw_png(curve_view(), "digits")
    assert "scavenger[plots]" in caught.value.remedy


def test_without_pandas_a_curve_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """With it: tests/integrations/test_notebook.py."""
    monkeypatch.setitem(sys.modules, "pandas", None)
    curve = ShownCurve.model_validate(curve_view().model_dump())
    with pytest.raises(ImportError, match=r"pip install 'scavenger\[pandas\]'"):
        curve.to_pandas()
    assert "cost" in FIGURES
    assert not {"id", "workers", "on_front", "violations"} & {*FIGURES}
