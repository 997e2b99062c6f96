"""Write the table of checks in docs/check.md from the checks themselves."""

from pathlib import Path

from k3stack.verify.registry import all_checks

PAGE = Path(__file__).with_name("check.md")
BEGIN, END = "<!-- checks: written by docs/write_checks.py -->\n", "<!-- end of checks -->\n"


def table() -> str:
    """The table's text: one row for each check, in the order in which they run."""
    rows = ["| id | level | proves | a failure usually means |\n|---|---|---|---|\n"]
    for one in all_checks():
        cells = (f"`{one.id}`", one.level.value, one.proves, one.failure_means)
        rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n")
    return "".join(rows)


def write() -> str:
    """The whole page, with the table as it must be."""
    head, _, rest = PAGE.read_text().partition(BEGIN)
    _, _, tail = rest.partition(END)
    return f"{head}{BEGIN}{table()}{END}{tail}"


if __name__ == "__main__":
    PAGE.write_text(write())
