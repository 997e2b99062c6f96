"""Draw docs/pictures/house.svg: the rooms of src/k3stack and who imports whom, from the code as it is.

Run by `make docs`; a test compares the picture with the code.
"""

import ast
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "k3stack"
PICTURE = ROOT / "docs" / "pictures" / "house.svg"

LINE = ("checkpoint", "spec", "plan", "recipe", "launch", "verify")
BESIDE = ("patches", "guard", "reference")
BELOW = ("formats", "hardware", "engines", "xtml")
ABOVE = ("cli", "panel")
WIDTH, HEIGHT, STEP_X, STEP_Y = 128, 52, 168, 118


def rooms() -> dict[str, str]:
    """Every room that exists, with the first sentence of its docstring."""
    found = {}
    for path in sorted(SOURCE.iterdir()):
        if (path / "__init__.py").is_file():
            text = ast.get_docstring(ast.parse((path / "__init__.py").read_text())) or ""
            found[path.name] = text.splitlines()[0] if text else ""
    return found


def arrows(known: dict[str, str]) -> set[tuple[str, str]]:
    """(importer, imported) for every pair of rooms."""
    found = set()
    for room in known:
        for path in (SOURCE / room).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.ImportFrom) and node.module:
                    names = [node.module]
                elif isinstance(node, ast.Import):
                    names = [alias.name for alias in node.names]
                else:
                    continue
                for name in names:
                    parts = name.split(".")
                    if parts[0] == "k3stack" and len(parts) > 1 and parts[1] in known and parts[1] != room:
                        found.add((room, parts[1]))
    return found


def places(known: dict[str, str]) -> dict[str, tuple[int, int]]:
    """Where each room stands: the line in the middle, who uses it above, what it uses below."""
    placed = {}
    rows = [[name for name in names if name in known] for names in (ABOVE, LINE, BESIDE, BELOW)]
    for row, present in enumerate(filter(None, rows)):
        aside = STEP_X // 2 if present[0] in BESIDE else 0  # so that no arrow runs behind a room
        for column, name in enumerate(present):
            placed[name] = (24 + aside + column * STEP_X, 24 + row * STEP_Y)
    for name in known:
        placed.setdefault(name, (24 + len(LINE) * STEP_X, 24 + len(placed) * 20))
    return placed


def draw() -> str:
    """The picture as SVG text."""
    known = rooms()
    placed = places(known)
    used = defaultdict(list)
    for importer, imported in sorted(arrows(known)):
        used[importer].append(imported)
    width = max(x for x, _ in placed.values()) + WIDTH + 24
    height = max(y for _, y in placed.values()) + HEIGHT + 24
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif">',
        "<title>The rooms of k3stack; an arrow points from a room to one it imports</title>",
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">',
        '<path d="M0 0 8 4 0 8z" fill="#7a8ba3"/></marker></defs>',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
    ]
    for importer, names in used.items():
        if importer in ABOVE:  # the command line and the panel use every room: said in words
            continue
        for imported in names:
            parts.append(_arrow(placed[importer], placed[imported]))
    for name, (x, y) in placed.items():
        fill = "#1f4e79" if name in LINE else "#5b7fa6" if name in BESIDE + BELOW else "#8aa0b8"
        parts.append(f'<rect x="{x}" y="{y}" width="{WIDTH}" height="{HEIGHT}" rx="8" fill="{fill}"/>')
        middle = f'x="{x + WIDTH // 2}" y="{y + HEIGHT // 2 + 5}"'
        parts.append(f'<text {middle} text-anchor="middle" font-size="15" fill="#ffffff">{name}</text>')
        if name in ABOVE[-1:] or (name in ABOVE and ABOVE[-1] not in known):
            beside = f'x="{x + WIDTH + 16}" y="{y + HEIGHT // 2 + 5}"'
            parts.append(f'<text {beside} font-size="13" fill="#5b6b80">uses every room below</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def _arrow(start: tuple[int, int], end: tuple[int, int]) -> str:
    (x1, y1), (x2, y2) = start, end
    x1, x2 = x1 + WIDTH // 2, x2 + WIDTH // 2
    if y1 == y2:  # along a row: a bow above it
        bend = y1 - 14 - abs(x2 - x1) // 14
        path = f"M{x1} {y1} Q{(x1 + x2) // 2} {bend} {x2} {y2}"
    else:
        y1, y2 = (y1 + HEIGHT, y2) if y2 > y1 else (y1, y2 + HEIGHT)
        path = f"M{x1} {y1} C{x1} {(y1 + y2) // 2} {x2} {(y1 + y2) // 2} {x2} {y2}"
    return f'<path d="{path}" fill="none" stroke="#7a8ba3" stroke-width="1.3" marker-end="url(#tip)"/>'


if __name__ == "__main__":
    PICTURE.parent.mkdir(exist_ok=True)
    PICTURE.write_text(draw())
    print(PICTURE.relative_to(ROOT))
