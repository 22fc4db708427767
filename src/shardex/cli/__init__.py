"""The command line: `shardex info`, `head`, `sql`, `index`, `verify` and others.

In: arguments. Out: text or JSON on stdout; progress and errors on stderr. Each command is a few lines that call the
library and print the result. This room imports typer; `import shardex` does not import it.

- `commands`: the application, and the commands that read
- `writing_commands`: `convert` writes a dataset in another format or place, `tokenize` the tokens of documents
- `store_commands`: the commands for versions, verification and recovery
- `catalog_commands`: the commands for names in catalogs
- `terminal`: shared arguments, and printing as text or JSON
- `demo`: the script of `shardex demo`
"""

from shardex.cli.commands import app, main

__all__ = ["app", "main"]
