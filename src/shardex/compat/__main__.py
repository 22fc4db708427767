"""``python -m shardex.compat`` prints which names of the five systems are covered, and how."""

from shardex.compat.coverage import lines

if __name__ == "__main__":
    print(*lines(), sep="\n")
