"""Code blocks of the documents of the five systems, with only their import lines changed."""

import re
from collections.abc import Mapping
from pathlib import Path
from textwrap import dedent
from typing import Any, NamedTuple

DOCUMENTS = Path(__file__).parent / "documents"
_FENCE = re.compile(r"^( *)```python\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
"""A block, which is indented inside of a list."""


class CodeBlock(NamedTuple):
    """One block of Python code of a document."""

    place: str
    """File and line, for tracebacks."""
    code: str

    def run(self, namespace: dict[str, Any]) -> None:
        """Execute the block."""
        exec(compile(self.code, self.place, "exec"), namespace)


def code_blocks(file: str, package: str, placeholders: Mapping[str, str]) -> list[CodeBlock]:
    """Return every block of Python code of a document, in order.

    Imports of `package` become those of its package in `shardex.compat`. `placeholders` are the parts that the document
    leaves out, such as ``...`` in a signature, and what to write instead; each of them must be in the document.
    """
    text = (DOCUMENTS / file).read_text("utf-8")
    for left_out, code in placeholders.items():
        assert left_out in text, f"{file} has no {left_out!r}"
        text = text.replace(left_out, code)
    found = [(text.count("\n", 0, one.start(2)) + 1, dedent(one[2])) for one in _FENCE.finditer(text)]
    return [CodeBlock(f"{file}:{line}", with_compat_imports(code, package)) for line, code in found]


def with_compat_imports(code: str, package: str) -> str:
    """Return code with other import lines.

    >>> print(with_compat_imports("import atdata\\nfrom atdata.lens import x\\nfrom atdatas import y", "atdata"))
    import shardex.compat.atdata as atdata
    from shardex.compat.atdata.lens import x
    from atdatas import y
    """
    code = re.sub(rf"^(\s*)import {package}$", rf"\1import shardex.compat.{package} as {package}", code, flags=re.M)
    return re.sub(rf"^(\s*(?:from|import)) {package}(?=[. ])", rf"\1 shardex.compat.{package}", code, flags=re.M)
