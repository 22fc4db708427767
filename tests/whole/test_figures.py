"""Every measured figure of README.md and docs/*.md is one of benchmarks/README.md, which is their only source.

A section of a page, or the text before its first one, links to the sections of benchmarks/README.md that its figures
are from. A figure is a number with a unit of speed or time, perhaps rounded, or with another prefix (0.15 ms, 152 us).
"""

import re
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
CODE = re.compile(r"^ *```.*?^ *```$|`[^`\n]*`", re.MULTILINE | re.DOTALL)
FIGURE = re.compile(r"(?<![\w.,-])(\d[\d,]*(?:\.\d+)?)(?: (k|M|us|ms|s)\b)?(?![\w%]|\.\d)")
LINK = re.compile(r"benchmarks/README\.md#([\w-]+)")
UNITS = {"k": 1e3, "M": 1e6, "us": 1e-6, "ms": 1e-3, "s": 1.0}
WITHOUT_UNIT = {"k": [1e-3], "M": [1e-6], "us": [1.0, 1e-3], "ms": [1.0, 1e-3], "s": [1.0, 1e-3]}
"""What a number of a table means whose heading has the unit: 22,601 rows/s, or 88,678 us."""


class Section(NamedTuple):
    anchor: str
    own: str
    """Its text up to the next heading."""
    whole: str
    """Its text with that of its subsections."""


def sections_of(page: Path) -> list[Section]:
    """Return the sections of a page; code is left out."""
    text = CODE.sub("", page.read_text("utf-8"))
    heads = list(re.finditer(r"^(#+) (.*)\n", text, re.MULTILINE))
    found = []
    for number, head in enumerate(heads):
        later = heads[number + 1 :]
        ends = [one.start() for one in later if len(one[1]) <= len(head[1])]
        anchor = re.sub(r"[^\w\- ]", "", head[2].lower()).replace(" ", "-")
        own = text[head.end() : later[0].start() if later else None]
        found.append(Section(anchor, own, text[head.end() : ends[0] if ends else None]))
    return found


SOURCES = {section.anchor: section.whole for section in sections_of(ROOT / "benchmarks" / "README.md")}


def is_from(number: str, unit: str, source: str) -> bool:
    """Return whether a source has this figure, perhaps with more digits.

    >>> is_from("0.15", "ms", "| 152 us |"), is_from("62", "us", "us: 61.5"), is_from("9.1", "k", "9.7 k, 9.1 us")
    (True, True, False)
    """
    stated, place = float(number.replace(",", "")), 10.0 ** -len(number.partition(".")[2])
    for found, other in FIGURE.findall(source):
        scales = [UNITS[other] / UNITS[unit]] if other else WITHOUT_UNIT[unit]
        if any(abs(float(found.replace(",", "")) * scale - stated) <= place * 0.501 for scale in scales):
            return True
    return False


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_figures_are_those_of_the_benchmarks(page: Path) -> None:
    sections = sections_of(page)
    general = LINK.findall(sections[0].own)
    for section in sections:
        links = [*LINK.findall(section.own), *general]
        source = "\n".join(SOURCES[link] for link in links)
        figures = [(number, unit) for number, unit in FIGURE.findall(section.own) if unit]
        wrong = [f"{number} {unit}" for number, unit in figures if not is_from(number, unit, source)]
        if not links:  # options and limits have units of time, too
            wrong = [one for one in wrong if one.endswith((" k", " M"))]
        assert not wrong, f"{page.name}, section {section.anchor}: not in the sections {links} of benchmarks/README.md"
