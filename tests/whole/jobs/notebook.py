"""A notebook: what cells show, and what the tab key offers."""

from IPython.core.completer import provisionalcompleter
from IPython.core.interactiveshell import InteractiveShell

shell = InteractiveShell()


def cell(code: str) -> str:
    """Run a cell and return the text that it shows."""
    result = shell.run_cell(code, store_history=True)
    result.raise_error()
    if result.result is None:
        return ""
    return shown_as("text/plain", result.result)


def shown_as(kind: str, value: object) -> str:
    """Return what a value looks like as text or as HTML."""
    data, _ = shell.display_formatter.format(value)
    return str(data[kind])


def html(code: str) -> str:
    """Return the HTML that a cell shows."""
    return shown_as("text/html", shell.run_cell(code).result)


def tab(text: str) -> set[str]:
    """Return what the tab key offers after a text."""
    with provisionalcompleter():
        return {one.text.strip(".'\"]") for one in shell.Completer.completions(text, len(text))}


cell("import shardex as sx")
shown = cell("""
ds = sx.write("d", [{"station": f"s{k % 3}", "x": k} for k in range(5000)])
ds
""")
assert shown.startswith("Dataset(5,000 samples: station text, x int64 - arrow, 1 shard"), shown
assert cell("ds.head(2)") == "[DictSample(station='s0', x=0), DictSample(station='s1', x=1)]"
assert "Dataset(10 of 5,000 samples, shuffled" in cell("ds.shuffle(seed=0)[:10]")
assert "1,667 of 5,000 samples, where station = 's0'" in cell("ds.where(\"station = 's0'\")")
assert cell("ds[0]") == "DictSample(station='s0', x=0)"
assert cell("ds['x'][:3]") == "array([0, 1, 2])"
assert "Iterator(batches of 4 samples, in order, of Dataset(" in cell("ds.ordered(4)")
assert "Batch(4 samples: station=" in cell("batch = next(ds.ordered(4))\nbatch")
assert "Loader(5,000 samples" in cell("loader = sx.Loader(ds, 32)\nloader")

cell("""
import numpy as np
pictures = sx.open([{"image": np.zeros((20, 30, 3), "uint8"), "name": "<b>"} for _ in range(5)])
""")
assert cell("ds.show()").startswith('Figure(16 of 5,000 samples: station, x); a notebook shows it, save("figure.html")')
for shown in (
    "pictures",
    "pictures.show(3)",
    "pictures[0]",
    "next(pictures.ordered(3))",
    "next(iter(sx.Loader(pictures, 3)))",
):
    assert "data:image/png" in html(shown) and "&lt;b&gt;" in html(shown) and "<b>" not in html(shown), shown
assert "sx-card" in html("next(pictures.ordered(3)).show()")

cell("sample = ds[0]")
assert {"station", "x"} <= tab("sample.")
assert {"station", "x"} <= tab("ds['") and {"station", "x"} <= tab("batch['") and {"station", "x"} <= tab("sample['")
assert {"where", "sort", "head", "fields"} <= tab("ds.")
assert not {"advise", "sql_columns", "through"} & tab("ds.")

# A lens that is defined again, and a loop that is left and begun again.
for _ in range(2):
    cell("""
@sx.lens
def level(sample: dict) -> dict:
    return {"level": sample["x"] * 2}
""")
assert cell("ds.view(level)[3]") == "DictSample(level=6)"
cell("for batch in loader:\n    break\nloader.seek()\nfor batch in loader:\n    break")
assert cell("batch.x[0].item()") == "0"
