"""The limit: pgbench, in C, prepared statements, over the bare life cycle of a write: one commit
for its insert, one for its claim, one for its end."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tests.bench.programs import Stuck, ended
from tests.bench.stage import Stage
from workers.server_programs import Account, postgres_folder

_LIMIT_S = 300.0
_TPS = re.compile(r"^tps = ([0-9.]+)", re.MULTILINE)
# A row as small as a ledger's may be: a key that is unique, a request. Each client claims
# and ends the row that it inserted: nothing is searched for.
SCHEMA = """
CREATE TABLE writes (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    key uuid NOT NULL UNIQUE DEFAULT gen_random_uuid(),
    status text NOT NULL DEFAULT 'pending',
    request text NOT NULL DEFAULT repeat('some hundred bytes of a request ', 9),
    lease_until timestamptz,
    receipt text);
"""
INSERT = "INSERT INTO writes DEFAULT VALUES"
_LIFE = """INSERT INTO writes DEFAULT VALUES RETURNING id \\gset
UPDATE writes SET status = 'in_flight', lease_until = now() + '60 s' WHERE id = :id AND status = 'pending';
UPDATE writes SET status = 'done', lease_until = NULL, receipt = 'wr_' || id WHERE id = :id AND status = 'in_flight';
"""  # noqa: E501 - a statement of pgbench's ends with its line


@dataclass(frozen=True)
class Limit:
    """What the bare database did: life cycles (or inserts) per second, WAL bytes for each."""

    rate: float
    wal: float


def life_cycles(stage: Stage, count: int, clients: int) -> Limit:
    """So many life cycles, spread over the clients."""
    return _run(stage, _LIFE, count, clients)


def inserts(stage: Stage, count: int) -> Limit:
    """So many inserts by one client, each its own commit."""
    return _run(stage, f"{INSERT};\n", count, 1)


def _run(stage: Stage, script: str, count: int, clients: int) -> Limit:
    with stage.place(migrated=False) as place:
        place.sql(SCHEMA)
        path = stage.folder / "script.sql"
        path.write_text(script)
        each = max(count // clients, 1)
        wal = place.wal_bytes()
        command = [
            str(postgres_folder(Account()) / "pgbench"), "-n", "-M", "prepared",
            "-f", str(path), "-c", str(clients), "-j", str(min(clients, 2)), "-t", str(each),
            "-h", str(stage.servers.run_dir), "-U", "postgres", place.name,
        ]  # fmt: skip
        done = ended(command, place.env, place.limit_s(_LIMIT_S))
        found = _TPS.search(done.stdout)
        if done.returncode or found is None:
            raise Stuck(f"pgbench ended with code {done.returncode}: {done.stderr[-300:]}")
        return Limit(float(found.group(1)), (place.wal_bytes() - wal) / (each * clients))
