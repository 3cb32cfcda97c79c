"""pgbench's row by psycopg, each its own commit: `python -m tests.bench.bare_insert COUNT`."""

from __future__ import annotations

import json
import os
import sys
import time

import psycopg

from tests.bench.pgbench import INSERT


def main() -> int:
    """Prints ``took_ns``: what each insert took with its commit."""
    took = []
    url = os.environ["DATABASE_URL"].replace("+psycopg", "")
    with psycopg.connect(url) as connection:
        for _ in range(int(sys.argv[1])):
            started = time.monotonic_ns()
            connection.execute(INSERT)
            connection.commit()
            took.append(time.monotonic_ns() - started)
    print(json.dumps({"took_ns": took}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
