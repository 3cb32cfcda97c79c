"""An application that owns folders named as our packages are, with and without PYTHONPATH."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from outbox_command import PACKAGES
from tests.adoption.served import env_of
from tests.cli.desk import SCRIPT
from tests.workers.floor import WAIT_S, Floor, wait_until
from workers.folders import until

pytestmark = pytest.mark.heavy

THEIRS = ("workers", "migrations")
ALL = (*THEIRS, "resolvers", "vendors", "outbox")
AGENT = """
import sys, psycopg, workers, migrations
from outbox import Outbox, Scope, WriteTool
from workers.tasks import CARD
assert workers.OWNER == migrations.OWNER == "the application"
charge = WriteTool("charge_invoice", vendor="stripe", operation="payment_intents.create",
    side_effect="charge", identity=("invoice_id",), guard=("amount", "currency", "customer"),
    money=("amount", "currency"))
outbox = Outbox.from_env()
with psycopg.connect(outbox.settings.database_url.replace("+psycopg", "")) as connection:
    outbox.enqueue(connection, charge, Scope(tenant="acme", run_id="run"),
        {**CARD, "invoice_id": sys.argv[1]})
outbox.ring()
"""
TASKS = """
CARD = {"amount": 4900, "currency": "usd", "customer": "cus_1", "confirm": True,
    "payment_method": "pm_card_visa",
    "automatic_payment_methods": {"enabled": True, "allow_redirects": "never"}}
"""
BILLING = """
from pathlib import Path
def apply(session, settlement):
    with Path("booked").open("a") as out:
        out.write(settlement.identity["invoice_id"] + " " + settlement.business_status + "\\n")
"""


def make(place: Path, names: tuple[str, ...]) -> Path:
    """The application's folder, with packages of its own by those names."""
    for name in names:
        (place / name).mkdir()
        (place / name / "__init__.py").write_text('OWNER = "the application"\n')
    if "workers" in names:
        (place / "workers" / "tasks.py").write_text(TASKS)
    (place / "agent.py").write_text(AGENT)
    (place / "billing.py").write_text(BILLING)
    return place


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that Postgres' account can enter too."""
    folder = Path(tempfile.mkdtemp(dir="/var/tmp"))
    folder.chmod(0o711)
    yield folder
    shutil.rmtree(folder)


class App:
    """The application's folder and how commands are run from inside it."""

    def __init__(self, place: Path, env: dict[str, str]) -> None:
        self.place = place
        self.env = env

    def start(self, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, *words],
            cwd=self.place,
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def ran(self, *words: str) -> int:
        """The exit code; what was said where it is no plain answer."""
        process = self.start(*words)
        out, said = process.communicate(timeout=2 * WAIT_S)
        assert "Traceback" not in said, said
        assert process.returncode in (0, 3), out + said
        return process.returncode


@pytest.fixture(params=["PYTHONPATH unset", "PYTHONPATH set"])
def path(request: pytest.FixtureRequest, place: Path) -> dict[str, str]:
    return {"PYTHONPATH": str(place)} if request.param == "PYTHONPATH set" else {}


@pytest.fixture
def app(place: Path, path: dict[str, str], floor: Floor) -> App:
    env = env_of(floor, OUTBOX_PAGERS="none")
    env.pop("PYTHONPATH", None)
    return App(place, {**env, **path})


def test_an_agent_and_the_commands_work_beside_the_applications_own_workers_and_migrations(
    app: App, floor: Floor
) -> None:
    make(app.place, THEIRS)
    assert app.ran("agent.py", "in_1") == 0
    assert app.ran(str(SCRIPT), "schema", "check") == 0
    assert app.ran(str(SCRIPT), "schema", "upgrade") == 0
    assert app.ran(str(SCRIPT), "intent", "list") == 0
    worker = app.start(str(SCRIPT), "worker")
    try:
        wait_until(
            lambda: floor.statuses() == {"succeeded": 1} or worker.poll() is not None, 2 * WAIT_S
        )
    finally:
        worker.send_signal(signal.SIGTERM)
        _, said = worker.communicate(timeout=WAIT_S)
    assert worker.returncode == 0, said
    assert len(floor.posts()) == 1
    consume = ("consume", "billing:apply", "--consumer", "billing", "--once")
    assert app.ran(str(SCRIPT), *consume) == 0
    assert (app.place / "booked").read_text() == "in_1 paid\n"


def test_the_commands_do_not_mind_that_every_name_of_ours_is_a_folder_of_the_application(
    app: App, floor: Floor
) -> None:
    make(app.place, ALL)
    floor.one()
    assert app.ran(str(SCRIPT), "schema", "check") == 0
    assert app.ran(str(SCRIPT), "vendor", "check") == 0
    assert app.ran(str(SCRIPT), "resolve", "--once") == 0
    web = app.start(str(SCRIPT), "web")
    assert web.stderr is not None
    assert any("listening" in line for line in web.stderr)
    web.send_signal(signal.SIGTERM)
    web.communicate(timeout=WAIT_S)
    assert web.returncode == 0


@pytest.mark.heavy
def test_everything_comes_up_in_a_folder_with_those_names_on_its_path(place: Path) -> None:
    make(place, ALL)
    env = {"PATH": os.environ["PATH"], "PORT": "0", "PYTHONPATH": str(place)}
    app = App(place, env)
    up = app.start(str(SCRIPT), "up")
    try:
        assert until(lambda: (place / ".outbox/env").exists() or up.poll() is not None, 2 * WAIT_S)
        assert up.poll() is None
    finally:
        up.send_signal(signal.SIGTERM)
        _, said = up.communicate(timeout=2 * WAIT_S)
    assert up.returncode == 0, said
    assert "Traceback" not in said


def test_a_package_that_another_distribution_has_overwritten_is_named_with_the_way_out(
    place: Path,
) -> None:
    """As ``pip install`` of another distribution with a package `workers` leaves it."""
    root = Path(__file__).parents[2]
    installed = place / "site-packages"
    installed.mkdir()
    for name in PACKAGES:
        (installed / name).symlink_to(root / name)
    (installed / "workers").unlink()
    (installed / "workers").mkdir()
    (installed / "workers" / "__init__.py").touch()
    shutil.copy(root / "outbox_command.py", installed)
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(installed)}
    # Without the packages of this environment, which would stand in for what is gone.
    process = App(place, env).start("-S", "-c", "import outbox_command; outbox_command.main()")
    out, said = process.communicate(timeout=WAIT_S)
    assert (process.returncode, out) == (2, "")
    assert "the package workers" in said
    assert "virtual environment of its own" in said
