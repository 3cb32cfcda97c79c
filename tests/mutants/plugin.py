"""A pytest plugin (`-p tests.mutants.plugin`) that puts the fault named by OUTBOX_MUTANT in before
anything of ours is imported."""

from __future__ import annotations

import os

from tests.mutants.faults import MUTANTS
from tests.mutants.mutate import install

install(next(one for one in MUTANTS if one.name == os.environ["OUTBOX_MUTANT"]).edits)
