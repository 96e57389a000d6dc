"""A page of charts as SVG, which any browser and any README shows."""

from xml.sax.saxutils import escape

from localspec.measure.plot import Box, Line, Page, Shape


def svg(page: Page) -> str:
    """A complete SVG document on white ground."""
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{page.width}" height="{page.height}" '
        f'viewBox="0 0 {page.width} {page.height}" font-family="system-ui, sans-serif">'
    )
    ground = '<rect width="100%" height="100%" fill="#ffffff"/>'
    return "\n".join([head, ground, *map(element, page.shapes), "</svg>", ""])


def element(shape: Shape) -> str:
    match shape:
        case Box(x, y, width, height, colour):
            return (
                f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{colour}"/>'
            )
        case Line(x1, y1, x2, y2, colour):
            return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}"/>'
    return (
        f'<text x="{shape.x:.1f}" y="{shape.y:.1f}" font-size="{shape.size}" text-anchor="{shape.anchor}" '
        f'dominant-baseline="central" fill="{shape.colour}">{escape(shape.text)}</text>'
    )
