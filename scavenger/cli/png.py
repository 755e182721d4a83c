"""The picture of a curve as PNG, for chats and slides that show no SVG."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from scavenger.cli.errors import BinaryOnTerminal, ExtraNotInstalled
from scavenger.cli.output import Terminal
from scavenger.drawing import draw_curve
from scavenger.schemas.curves import CurveView

ZOOM = 2.0  # for the screens that show more pixels
FONT = "DejaVu Sans"


def draw_png(curve: CurveView, title: str) -> bytes:
    """Draw a curve as PNG, from the same picture as the SVG.

    Raises:
        ExtraNotInstalled: The extra ``plots`` is not installed.
    """
    try:
        import matplotlib as mpl
        import resvg_py
    except ImportError as error:
        raise ExtraNotInstalled(f"A PNG needs {error.name}, or take -o svg", "plots") from None
    # A server has no fonts, and a picture without words says nothing: matplotlib brings one.
    fonts = Path(mpl.get_data_path()) / "fonts" / "ttf"
    return bytes(
        resvg_py.svg_to_bytes(
            svg_string=draw_curve(curve, title),
            zoom=ZOOM,
            skip_system_fonts=True,
            font_dirs=[str(fonts)],
            font_family=FONT,
            sans_serif_family=FONT,
        )
    )


def write_png(terminal: Terminal, picture: bytes, job: str) -> None:
    """Write the picture of a job's curve to standard output.

    Raises:
        BinaryOnTerminal: That is a terminal, which would show it as garbage.
    """
    if terminal.stdout.is_terminal:
        raise BinaryOnTerminal(f"scavenger curve {job} -o png > curve.png")
    text = terminal.stdout.file
    text.flush()
    stream: Any = getattr(text, "buffer", text)
    stream.write(picture)
    stream.flush()
