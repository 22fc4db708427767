"""``python -m shardex`` is the command ``shardex``."""

from shardex.cli import main

if __name__ == "__main__":
    main()
