"""The picture of a cost/time curve: one static SVG for API, command line and notebooks.

What a mark means is told by its shape, never by colour alone. The picture follows the reader's
light or dark theme by itself, and holds no script. Where everything stands follows from the curve
alone, so that two pictures of one curve are equal.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from xml.etree.ElementTree import Element, SubElement, tostring
from zlib import crc32

from scavenger.plane import (
    HEIGHT,
    LEFT,
    LETTER,
    LINE,
    SHAPES,
    TOP,
    WIDTH,
    Box,
    Plane,
    add,
    add_text,
    find_room,
    line,
    pixels,
    places_around,
    steps_through,
    write,
)
from scavenger.schemas.curves import CurveView, PointView
from scavenger.schemas.jobs import ConfigView

# Below this support the knee is a range, and two hollow stars mark its ends.
SURE_KNEE = 0.6
STYLE = """
.scv-ground{fill:#fff}.scv text{font:11px system-ui,sans-serif;fill:#1f2328}
.scv .scv-head{font-size:15px;font-weight:600}.scv .scv-dim{fill:#57606a}
.scv-grid{stroke:#e6e8eb}.scv-axis{stroke:#8c959f}.scv-batch{fill:none;stroke:#c4cad1}
.scv-band{fill:#0072B2;fill-opacity:.13}.scv-front{fill:none;stroke:#0072B2;stroke-width:2}
.scv-limit{stroke:#b3261e;stroke-dasharray:6 4}.scv-over{fill:#767676;fill-opacity:.1}
.scv-measured{fill:#0072B2;stroke:#0072B2}.scv-predicted,.scv-extrapolated{fill:#fff;stroke:#0072B2}
.scv-extrapolated{stroke-dasharray:2.5 1.8}.scv-infeasible{fill:none;stroke:#767676}
.scv-knee{fill:#D55E00;stroke:#111418}.scv-unsure{fill:none;stroke:#D55E00}
.scv-running{fill:none;stroke:#007A5A;stroke-width:2.5}.scv-leader,.scv-error{stroke:#57606a}.scv-error{stroke-opacity:.45}
@media (prefers-color-scheme:dark){
.scv-ground{fill:#111418}.scv text{fill:#e6edf3}.scv .scv-dim{fill:#9aa4af}
.scv-grid{stroke:#262c33}.scv-axis{stroke:#6e7781}.scv-batch{stroke:#454c54}
.scv-band{fill:#56B4E9}.scv-front{stroke:#56B4E9}.scv-limit{stroke:#ff8a80}.scv-over{fill:#9AA0A6}
.scv-measured{fill:#56B4E9;stroke:#56B4E9}.scv-predicted,.scv-extrapolated{fill:#111418;stroke:#56B4E9}
.scv-infeasible{stroke:#9AA0A6}.scv-knee{fill:#E69F00;stroke:#fff}.scv-unsure{stroke:#E69F00}
.scv-running{stroke:#2FC59A}.scv-leader,.scv-error{stroke:#9aa4af}}
"""
LEGEND = {
    "measured": "measured",
    "predicted": "predicted",
    "extrapolated": "outside the probed range",
    "infeasible": "excluded by a limit",
    "knee": "knee",
    "unsure": "knee, not sure",
    "running": "running now",
}


def draw_curve(curve: CurveView, title: str = "Cost and time to target") -> str:
    """Draw a curve as an SVG document.

    Args:
        curve: The curve; without points the picture says why there are none.
        title: Heading of the picture, such as the job's name.
    """
    name = f"scv-{crc32(f'{title}{curve.as_of}{curve.why}{len(curve.points)}'.encode()):08x}"
    root = Element("svg", xmlns="http://www.w3.org/2000/svg", role="img")
    root.set("class", "scv")
    root.set("viewBox", f"0 0 {WIDTH:g} {HEIGHT:g}")
    root.set("width", f"{WIDTH:g}")
    root.set("height", f"{HEIGHT:g}")
    root.set("aria-labelledby", f"{name}-title {name}-desc")
    add_text(root, "title", title, id=f"{name}-title")
    add_text(root, "desc", describe_curve(curve), id=f"{name}-desc")
    SubElement(root, "style").text = STYLE
    add(root, "rect", "scv-ground", width=f"{WIDTH:g}", height=f"{HEIGHT:g}")
    write(root, LEFT, 24, title, "scv-head")
    write(root, LEFT, 42, subtitle_of(curve), "scv-dim")
    if curve.points:
        draw_plane(root, curve, name)
    else:
        write(root, LEFT, HEIGHT / 2, f"No curve yet: {curve.why}"[:120])
    return tostring(root, encoding="unicode")


def draw_plane(root: Element, curve: CurveView, name: str) -> None:
    """Draw axes, lines, marks, labels and legend of a curve that has points."""
    plane = Plane.around(curve)
    width, height = plane.time.last - plane.time.first, plane.cost.first - TOP
    clip = SubElement(root, "clipPath", id=f"{name}-clip")
    SubElement(clip, "rect", pixels(x=plane.time.first, y=TOP, width=width, height=height))
    draw_axes(root, plane)
    inside = SubElement(root, "g", {"clip-path": f"url(#{name}-clip)"})
    shown = [point for point in curve.points if plane.holds(point)]
    draw_batches(inside, curve, plane)
    draw_front(inside, [point for point in curve.points if point.on_front], plane)
    draw_limits(root, curve, plane)
    draw_labels(root, shown, curve, plane)
    # What matters most is drawn last, and so on top.
    for point in sorted(shown, key=lambda p: (p.on_front, not p.violations)):
        draw_mark(root, point, curve, plane)
    hidden = len(curve.points) - len(shown)
    draw_legend(root, {role for point in shown for role in roles_of(point, curve)}, hidden)


def roles_of(point: PointView, curve: CurveView) -> list[str]:
    """Return what a mark says of a point, a shape for each: what it rests on comes last."""
    config = ConfigView(workers=point.workers, global_batch=point.global_batch)
    roles = ["running"] if config == curve.current else []
    if curve.knee_bends:
        is_sure = curve.support is None or curve.support >= SURE_KNEE
        if config == curve.knee or config in curve.other_knees:
            roles.append("knee" if is_sure else "unsure")
        elif config == curve.runner_up and not is_sure and not point.violations:
            roles.append("unsure")
    return [*roles, "infeasible" if point.violations else point.source]


def draw_mark(parent: Element, point: PointView, curve: CurveView, plane: Plane) -> None:
    """Draw a point: one shape for each of its roles, and the cross of its interval on the front."""
    x, y = plane.place(point)
    mark = SubElement(parent, "g", {"data-point": point.id})
    names = ", ".join(names_of(point, curve))
    add_text(mark, "title", f"{names}{': ' if names else ''}{describe_point(point, plane)}")
    if point.on_front:
        bars = ((point.time_low, point.time_high), (float(point.cost_low), float(point.cost_high)))
        (left, right), (low, high) = bars
        line(mark, "scv-error", plane.time.at(left), y, plane.time.at(right), y)
        line(mark, "scv-error", x, plane.cost.at(low), x, plane.cost.at(high))
    for role in roles_of(point, curve):
        shape = add(
            mark, "path", f"scv-{role}", d=SHAPES[role](x, y, 1.25 if point.on_front else 1)
        )
        shape.set("data-role", role)


def describe_point(point: PointView, plane: Plane) -> str:
    """Say what a point is and takes, in one line."""
    time = [plane.write_time(value) for value in (point.time, point.time_low, point.time_high)]
    cost = [
        plane.write_cost(float(value)) for value in (point.cost, point.cost_low, point.cost_high)
    ]
    figures = (f"{each[0]} ({each[1]} to {each[2]})" for each in (time, cost))
    found = [str(point.config), *figures, LEGEND[point.source]]
    return "; ".join([*found, *(["on the front"] if point.on_front else []), *point.violations])


def names_of(point: PointView, curve: CurveView) -> list[str]:
    """Return what a configuration is called; few have a name."""
    config = ConfigView(workers=point.workers, global_batch=point.global_batch)
    named = {
        "knee" if curve.knee_bends else "least time × cost": curve.knee,
        "fastest": curve.fastest,
        "cheapest": curve.cheapest,
        "chosen": curve.chosen,
        "running": curve.current,
    }
    return [name for name, marked in named.items() if marked == config]


def describe_curve(curve: CurveView) -> str:
    """Say in one sentence what a curve shows.

    A reader that cannot see the picture gets this instead.
    """
    front = sorted((p for p in curve.points if p.on_front), key=lambda p: p.time)
    if not front:
        return f"No configuration meets the limits: {curve.why}" if curve.points else curve.why
    plane = Plane.around(curve)
    ends = [f"{plane.write_cost(float(p.cost))} in {plane.write_time(p.time)}" for p in front]
    span = f"from {ends[-1]} to {ends[0]}" if len(front) > 1 else ends[0]
    count = f"{len(front)} option{'' if len(front) == 1 else 's'} on the front"
    found = {"running": curve.current, "chosen": curve.chosen}
    found |= {"knee": curve.knee} if curve.knee_bends else {}
    marks = [f"{name} {config}" for name, config in found.items() if config]
    return f"{'; '.join([f'{count}, {span}', *marks])}."


def subtitle_of(curve: CurveView) -> str:
    """Return when and of what a curve is."""
    bases = {
        "relative": "multiples of the start, since the epochs to target are not known",
        "remaining": "for what is left of the job",
    }
    which = [] if curve.decision is None else [f"decision {curve.decision}"]
    when = f"as of {curve.as_of:%Y-%m-%d %H:%M} UTC"
    notes = [*which, when, bases.get(curve.basis, ""), f"source: {curve.source}"]
    return " · ".join(note for note in notes if note)[:130]


def draw_axes(root: Element, plane: Plane) -> None:
    """Draw axes with their ticks and titles."""
    left, right, floor = plane.time.first, plane.time.last, plane.cost.first
    divisor, unit = time_unit(plane)
    for tick in plane.time.ticks(divisor):
        x = plane.time.at(tick)
        line(root, "scv-grid", x, TOP, x, floor)
        write(root, x, floor + 17, f"{tick / divisor:.4g}", "scv-dim", anchor="middle")
    for tick in plane.cost.ticks():
        y = plane.cost.at(tick)
        line(root, "scv-grid", left, y, right, y)
        write(root, left - 8, y + 4, plane.write_cost(tick), "scv-dim", anchor="end")
    line(root, "scv-axis", left, floor, right, floor)
    line(root, "scv-axis", left, TOP, left, floor)
    write(root, (left + right) / 2, floor + 35, f"time to target, {unit}", anchor="middle")
    title = write(root, 0, 0, f"cost to target, {cost_unit(plane)}", anchor="middle")
    title.set("transform", f"translate(16 {(TOP + floor) / 2:g}) rotate(-90)")


def time_unit(plane: Plane) -> tuple[float, str]:
    """Return the unit for times of this size: seconds in one, and its name."""
    if plane.basis == "relative":
        return 1.0, "multiples of the start's"
    units = ((86400.0, "days"), (3600.0, "hours"), (60.0, "minutes"))
    found = (unit for unit in units if plane.time.high >= 2 * unit[0])
    return next(found, (1.0, "seconds"))


def cost_unit(plane: Plane) -> str:
    """Return the unit of costs."""
    return "multiples of the start's" if plane.basis == "relative" else "US dollars"


def draw_batches(parent: Element, curve: CurveView, plane: Plane) -> None:
    """Draw a line through the points of each batch: along it only the workers change."""
    by_batch: dict[int, list[PointView]] = defaultdict(list)
    for point in sorted(curve.points, key=lambda p: (p.global_batch, p.workers)):
        by_batch[point.global_batch].append(point)
    for points in by_batch.values():
        path = " ".join(f"{x:g},{y:g}" for x, y in map(plane.place, points))
        add(parent, "polyline", "scv-batch", points=path)


def draw_front(parent: Element, front: Sequence[PointView], plane: Plane) -> None:
    """Draw the front as steps, since only its points are promised, and its 80 % band alike."""
    lows = [(p.time_low, float(p.cost_low)) for p in front]
    highs = [(p.time_high, float(p.cost_high)) for p in front]
    lower, upper = (steps_through(ends, plane) for ends in (lows, highs))
    if lower and lows != highs:
        (left, _), (_, floor) = lower[0].split(","), lower[-1].split(",")
        (_, ceiling), (right, _) = upper[0].split(","), upper[-1].split(",")
        corners = [f"{left},{ceiling}", *lower, f"{right},{floor}", *reversed(upper)]
        band = f"M{' L'.join(corners)}Z"
        add(parent, "path", "scv-band", d=band)
    path = steps_through([(p.time, float(p.cost)) for p in front], plane)
    if path:
        add(parent, "path", "scv-front", d=f"M{' L'.join(path)}")


def draw_limits(root: Element, curve: CurveView, plane: Plane) -> None:
    """Draw each limit as a line, or name it at the edge behind which it lies."""
    limits = curve.limits
    if limits is None or curve.basis == "relative":
        return
    left, right, floor = plane.time.first, plane.time.last, plane.cost.first
    if limits.max_cost is not None:
        cost = float(limits.max_cost)
        text = f"max_cost {plane.write_cost(cost)}"
        if plane.cost.holds(cost):
            y = plane.cost.at(cost)
            add(
                root,
                "rect",
                "scv-over",
                **pixels(x=left, y=TOP, width=right - left, height=y - TOP),
            )
            line(root, "scv-limit", left, y, right, y)
            write(root, left + 6, y - 5 if y > TOP + 20 else y + 14, text)
        else:
            write(root, left + 6, TOP + 12, f"▴ {text}")
    if limits.max_time is not None:
        text = f"max_time {plane.write_time(limits.max_time)}"
        if plane.time.holds(limits.max_time):
            x = plane.time.at(limits.max_time)
            add(root, "rect", "scv-over", **pixels(x=x, y=TOP, width=right - x, height=floor - TOP))
            line(root, "scv-limit", x, TOP, x, floor)
            write(root, x - 5, floor - 7, text, anchor="end")
        else:
            write(root, right - 4, floor - 7, f"{text} ▸", anchor="end")


def draw_labels(root: Element, shown: Sequence[PointView], curve: CurveView, plane: Plane) -> None:
    """Name the few configurations that have a name, and batches where there is room."""
    marks = [Box(x - 8, y - 8, 16, 16) for x, y in map(plane.place, shown)]
    labels: list[Box] = []
    for point in shown:
        lines = [" · ".join(names_of(point, curve)), str(point.config)]
        if not lines[0]:
            continue
        x, y = plane.place(point)
        places = list(places_around(x, y, LETTER * max(map(len, lines)), 2 * LINE))
        # A label rather covers a nameless mark than another label.
        box = find_room(places, [*labels, *marks]) or find_room(places, labels) or places[0]
        labels.append(box)
        middle = min(max(x, box.left), box.left + box.width)
        line(root, "scv-leader", x, y, middle, box.top if box.top > y else box.top + box.height)
        for number, text in enumerate(lines):
            place = box.top + LINE * (number + 0.8)
            write(root, box.left, place, text, "scv-dim" if number else "")
    ends = {p.global_batch: p for p in sorted(shown, key=lambda p: -p.workers)}
    for batch, point in ends.items():
        x, y = plane.place(point)
        text = f"B {batch}"
        near = (Box(x + 9, y + dy, LETTER * len(text), LINE) for dy in (5.0, -17.0))
        free = find_room(near, [*labels, *marks])
        if free is not None:
            labels.append(free)
            write(root, free.left, free.top + 0.8 * LINE, text, "scv-dim")


def draw_legend(root: Element, roles: set[str], hidden: int) -> None:
    """Explain the shapes that are there."""
    x, y = LEFT, HEIGHT - 44
    entries = [(role, text) for role, text in LEGEND.items() if role in roles]
    for role, text in [*entries, ("front", "front, with its 80 % band")]:
        width = 22 + LETTER * len(text) + 16
        if x + width > WIDTH - 10:
            x, y = LEFT, y + 18
        if role == "front":
            line(root, "scv-front", x - 3, y, x + 13, y)
        else:
            add(root, "path", f"scv-{role}", d=SHAPES[role](x + 5, y, 0.8))
        write(root, x + 22, y + 4, text)
        x += width
    if hidden:
        note = f"{hidden} point{'' if hidden == 1 else 's'} farther away not shown"
        write(root, WIDTH - 10, HEIGHT - 8, note, "scv-dim", anchor="end")
