"""The script `outbox` with the zero-cost vendor beside the built-in ones; the same arguments."""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":
    # The folder of a script is searched first, and ours holds names that are others' elsewhere.
    sys.path[0] = str(Path(__file__).resolve().parents[2])
    from tests.bench import vendor
    from workers import cli

    vendor.install()
    cli.main()
