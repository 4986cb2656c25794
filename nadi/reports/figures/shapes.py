"""Lines, areas and text of a figure, and their two formats: SVG, and PDF 1.4 (ISO 32000-1) with vector graphics.

Coordinates are points (1/72 inch) from the upper left corner. Text is in Helvetica, which every PDF reader has, so that
no font is embedded; its widths place centred and right-aligned text.
"""

import html
import zlib
from collections.abc import Sequence
from typing import Literal, NamedTuple

Point = tuple[float, float]
Colour = tuple[float, float, float]  # red, green and blue from 0 to 1
Shape = "Path | Text"

# Widths of the characters 32 to 126 of Helvetica in thousandths of the size (Adobe's Core 14 AFM files)
_WIDTHS = (
    *(278, 278, 355, 556, 556, 889, 667, 191, 333, 333, 389, 584, 278, 333, 278, 278),
    *(556, 556, 556, 556, 556, 556, 556, 556, 556, 556, 278, 278, 584, 584, 584, 556),
    *(1015, 667, 667, 722, 722, 667, 611, 778, 722, 278, 500, 667, 556, 833, 722, 778),
    *(667, 778, 722, 667, 611, 722, 667, 944, 667, 667, 611, 278, 278, 278, 469, 556),
    *(333, 556, 556, 500, 556, 556, 278, 556, 556, 222, 222, 500, 222, 833, 556, 556),
    *(556, 556, 333, 500, 278, 556, 500, 722, 500, 500, 500, 334, 260, 334, 584),
)
_OTHER_WIDTH = 556  # of characters that the table lacks: the width of a digit
_FIRST = 32  # number of the first character of the table
_IN_PDF = {"→": "->"}  # characters that the encoding of PDF's fonts lacks


class Path(NamedTuple):
    """A line through points, or a filled area."""

    points: Sequence[Point]
    stroke: Colour | None = None  # colour of the line; None = no line
    width: float = 1.0  # width of the line in points
    dash: Sequence[float] = ()  # lengths of dashes and gaps in points; () = solid
    fill: Colour | None = None  # colour of the area; None = no area
    opacity: float = 1.0  # opacity of the area


class Text(NamedTuple):
    """A line of text."""

    at: Point  # place on the baseline
    text: str
    size: float = 9.0  # size in points
    anchor: Literal["start", "middle", "end"] = "start"  # which part of the text is at the place
    is_upward: bool = False  # whether the text runs from bottom to top


def width_of(text: str, size: float) -> float:
    """Return the width of a text in points."""
    numbers = [ord(character) - _FIRST for character in text]
    widths = (_WIDTHS[number] if 0 <= number < len(_WIDTHS) else _OTHER_WIDTH for number in numbers)
    return sum(widths) * size / 1000


def svg(shapes: Sequence[Path | Text], width: float, height: float) -> bytes:
    """Return an SVG file of a width and height in points."""
    size = f'width="{width:g}pt" height="{height:g}pt" viewBox="0 0 {width:g} {height:g}"'
    lines = [f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="Helvetica, Arial, sans-serif">']
    lines.append('<rect width="100%" height="100%" fill="white"/>')
    lines += [_svg_path(shape) if isinstance(shape, Path) else _svg_text(shape) for shape in shapes]
    return "\n".join([*lines, "</svg>", ""]).encode()


def _svg_path(path: Path) -> str:
    """Return an element of SVG."""
    points = " ".join(f"{x:.2f},{y:.2f}" for x, y in path.points)
    style = f'fill="{_svg_colour(path.fill)}" stroke="{_svg_colour(path.stroke)}"'
    if path.stroke is not None:
        style += f' stroke-width="{path.width:g}"'
    if path.dash:
        style += f' stroke-dasharray="{" ".join(f"{length:g}" for length in path.dash)}"'
    if path.opacity < 1:
        style += f' fill-opacity="{path.opacity:g}"'
    return f'<{"polyline" if path.fill is None else "polygon"} points="{points}" {style}/>'


def _svg_text(text: Text) -> str:
    """Return an element of SVG."""
    x, y = text.at
    turn = f' transform="rotate(-90 {x:.2f} {y:.2f})"' if text.is_upward else ""
    place = f'x="{x:.2f}" y="{y:.2f}" font-size="{text.size:g}" text-anchor="{text.anchor}"'
    return f"<text {place}{turn}>{html.escape(text.text)}</text>"


def _svg_colour(colour: Colour | None) -> str:
    return "none" if colour is None else "#" + "".join(f"{round(255 * part):02x}" for part in colour)


def pdf(shapes: Sequence[Path | Text], width: float, height: float) -> bytes:
    """Return a PDF file of one page, of a width and height in points."""
    opacities = sorted({shape.opacity for shape in shapes if isinstance(shape, Path)})
    lines = [
        _pdf_path(shape, height, opacities) if isinstance(shape, Path) else _pdf_text(shape, height) for shape in shapes
    ]
    content = zlib.compress("\n".join(lines).encode("cp1252", errors="replace"))
    states = " ".join(f"/G{number} << /ca {opacity:g} >>" for number, opacity in enumerate(opacities))
    font = "/Type /Font /Subtype /Type1 /BaseFont /Helvetica /Encoding /WinAnsiEncoding"
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        (
            f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 {width:g} {height:g}] /Contents 4 0 R "
            f"/Resources << /Font << /F << {font} >> >> /ExtGState << {states} >> >> >>"
        ).encode(),
        f"<< /Length {len(content)} /Filter /FlateDecode >>\nstream\n".encode() + content + b"\nendstream",
    ]
    file, places = b"%PDF-1.4\n", []
    for number, body in enumerate(objects, 1):
        places.append(len(file))
        file += f"{number} 0 obj\n".encode() + body + b"\nendobj\n"
    rows = "".join(f"{place:010} 00000 n \n" for place in places)
    end = f"xref\n0 {len(objects) + 1}\n0000000000 65535 f \n{rows}trailer\n"
    end += f"<< /Size {len(objects) + 1} /Root 1 0 R >>\nstartxref\n{len(file)}\n%%EOF\n"
    return file + end.encode()


def _pdf_path(path: Path, height: float, opacities: Sequence[float]) -> str:
    """Return operators of PDF, whose y axis points upwards; opacities: of all paths, in the order of their states."""
    (x, y), *others = path.points
    words = [f"q /G{opacities.index(path.opacity)} gs"]
    words += [f"{_pdf_colour(path.stroke)} RG {path.width:g} w"] if path.stroke is not None else []
    words += [f"{_pdf_colour(path.fill)} rg"] if path.fill is not None else []
    words += [f"[{' '.join(f'{length:g}' for length in path.dash)}] 0 d"] if path.dash else []
    words.append(f"{x:.2f} {height - y:.2f} m")
    words += [f"{x:.2f} {height - y:.2f} l" for x, y in others]
    is_line, is_area = path.stroke is not None, path.fill is not None
    return " ".join([*words, ("b" if is_line else "f") if is_area else "S", "Q"])


def _pdf_text(text: Text, height: float) -> str:
    """Return operators of PDF."""
    words = "".join(_IN_PDF.get(character, character) for character in text.text)
    share = {"start": 0.0, "middle": 0.5, "end": 1.0}[text.anchor]
    before = share * width_of(words, text.size)
    x, y = text.at
    escaped = words.replace("\\", r"\\").replace("(", r"\(").replace(")", r"\)")
    matrix = (
        f"0 1 -1 0 {x:.2f} {height - y - before:.2f}"
        if text.is_upward
        else f"1 0 0 1 {x - before:.2f} {height - y:.2f}"
    )
    return f"BT 0 g /F {text.size:g} Tf {matrix} Tm ({escaped}) Tj ET"


def _pdf_colour(colour: Colour | None) -> str:
    return " ".join(f"{part:.3f}" for part in colour or (0.0, 0.0, 0.0))
