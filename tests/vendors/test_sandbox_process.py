"""The sandbox as a process: what survives a kill, how it ends, what it does with odd clients."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.vendors.sandbox_shop import CHARGE, SECRET, open_shop, receiver, wait_until
from vendors.sandbox.client import Sandbox, SandboxRefused

ROOT = Path(__file__).resolve().parents[2]


def test_everything_survives_kill_9(tmp_path: Path) -> None:
    ledger = tmp_path / "vendor.sqlite"
    with Sandbox.start(ledger) as sandbox, open_shop(sandbox) as shop, receiver() as hooks:
        sandbox.set_account(shop.name, clock_offset_s=7200, webhook_retry_s=[0.05] * 500)
        sandbox.add_endpoint(shop.name, hooks.url, SECRET)
        hooks.status = 500
        paid = shop.charge("k1")
        hooks.next()
        sandbox.fault("late_commit", account=shop.name, attempts=[1], after_s=600)
        sandbox.fault("in_use_409", account=shop.name, attempts=[2], after_s=600)
        assert shop.charge("late").lost == "reset"
        assert shop.charge("late").lost == "reset"
        sandbox.kill()

        with Sandbox.start(ledger, port=urlsplit(sandbox.url).port or 0) as again:
            assert again.url == sandbox.url
            replayed = shop.charge("k1")
            assert replayed.body == paid.body
            assert replayed.headers["idempotent-replayed"] == "true"
            assert [effect["key"] for effect in again.effects(shop.name)] == ["k1"]
            assert again.account(shop.name)["clock_offset_s"] == 7200
            assert [row["attempt"] for row in again.requests(shop.name)] == [1, 1, 2, 2]
            assert len(again.faults()) == 2
            assert shop.charge("late").status == 409
            again.release(shop.name)
            assert shop.charge("late").status == 200
            assert [effect["key"] for effect in again.effects(shop.name)] == ["k1", "late"]
            hooks.status = 200
            assert again.wait_for_deliveries(shop.name)
            types = {row["event_type"] for row in again.deliveries(shop.name)}
            assert "payment_intent.succeeded" in types


def test_its_file_is_nobody_elses_to_read(tmp_path: Path) -> None:
    ledger = tmp_path / "vendor.sqlite"
    ledger.touch(mode=0o644)
    with Sandbox.start(ledger) as sandbox, open_shop(sandbox) as shop:
        shop.charge("k1")
        files = list(tmp_path.iterdir())
        assert ledger in files
        assert {oct(file.stat().st_mode & 0o077) for file in files} == {"0o0"}


def test_what_falls_due_while_it_is_down_happens_at_the_next_start(tmp_path: Path) -> None:
    ledger = tmp_path / "vendor.sqlite"
    with Sandbox.start(ledger) as sandbox, open_shop(sandbox) as shop:
        sandbox.fault("stored_500_object_later", account=shop.name, after_s=0.2)
        shop.charge("k1")
        due_at = sandbox.held(shop.name)[0]["due_at"]
        sandbox.kill()
        wait_until(lambda: time.time() > due_at)
        with Sandbox.start(ledger) as again:
            wait_until(lambda: len(again.effects(shop.name, "k1")) == 1)
            assert again.held(shop.name) == []


def test_no_answer_is_given_for_what_a_kill_can_undo(tmp_path: Path) -> None:
    ledger = tmp_path / "vendor.sqlite"
    with Sandbox.start(ledger) as sandbox, open_shop(sandbox) as shop:
        answered: list[str] = []

        def charge_on(worker: int) -> None:
            for number in range(10_000):
                key = f"{worker}-{number}"
                if shop.charge(key).status != 200:
                    return
                answered.append(key)

        with ThreadPoolExecutor(4) as pool:
            for worker in range(4):
                pool.submit(charge_on, worker)
            wait_until(lambda: len(answered) > 100)
            sandbox.kill()
        with Sandbox.start(ledger) as again:
            stored = {effect["key"] for effect in again.effects(shop.name)}
            assert set(answered) <= stored
            assert len(again.effects(shop.name)) == len(stored)


def test_sigterm_ends_it_cleanly(tmp_path: Path) -> None:
    sandbox = Sandbox.start(tmp_path / "vendor.sqlite")
    with open_shop(sandbox) as shop:
        sandbox.fault("hang", account=shop.name)
        assert shop.charge("k1", timeout_s=0.05).lost == "silence"
    assert sandbox.stop() == 0


PARENT = """
import sys, time
from vendors.sandbox.client import Sandbox
sandbox = Sandbox.start(sys.argv[1])
print(sandbox.url, flush=True)
time.sleep(60)
"""


def test_it_dies_with_its_parent_though_the_parent_was_killed(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PARENT, str(tmp_path / "vendor.sqlite")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT) as parent:
        assert parent.stdout is not None
        url = parent.stdout.readline().decode().strip()
        assert _listens(url)
        parent.kill()
    wait_until(lambda: not _listens(url))


def _listens(url: str) -> bool:
    parts = urlsplit(url)
    with socket.socket() as probe:
        return probe.connect_ex((parts.hostname or "", parts.port or 0)) == 0


def test_a_second_sandbox_on_the_same_file_does_not_start(tmp_path: Path) -> None:
    ledger = tmp_path / "vendor.sqlite"
    with Sandbox.start(ledger), pytest.raises(SandboxRefused):
        Sandbox.start(ledger)


def test_it_listens_on_this_machine_only(tmp_path: Path) -> None:
    with Sandbox.start(tmp_path / "vendor.sqlite") as sandbox:
        assert urlsplit(sandbox.url).hostname == urlsplit(sandbox.admin).hostname == "127.0.0.1"


@pytest.mark.parametrize("same", [True, False])
def test_ids_follow_from_the_seed(tmp_path: Path, same: bool) -> None:
    ids = []
    for number in range(2):
        seed = 7 if same else number
        with Sandbox.start(tmp_path / f"{number}.sqlite", seed=seed) as sandbox:
            ids.append(sandbox.plant("acme", "customers.create", {})["id"])
    assert (ids[0] == ids[1]) is same


def test_it_imports_neither_a_vendor_sdk_nor_a_database_driver() -> None:
    probe = (
        "import sys, vendors.sandbox.__main__, vendors.sandbox.client;"
        "print(sorted({name.partition('.')[0] for name in sys.modules}"
        " & {'stripe', 'sqlalchemy', 'psycopg', 'celery', 'redis', 'outbox'}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", probe], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_a_connection_is_kept_and_pipelined_requests_are_answered_in_order(
    sandbox: Sandbox,
) -> None:
    request = (
        "POST /v1/customers HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer sk_test_pipeline\r\n"
        "Content-Type: application/x-www-form-urlencoded\r\nIdempotency-Key: {key}\r\n"
        "Content-Length: 6\r\n\r\nname=A"
    )
    parts = urlsplit(sandbox.url)
    keys = [f"p{number}" for number in range(5)]
    with socket.create_connection((parts.hostname or "", parts.port or 0), 10) as raw:
        raw.sendall("".join(request.format(key=key) for key in keys).encode())
        got = b""
        while got.count(b"HTTP/1.1 200") < 5 or not got.endswith(b"}"):
            got += raw.recv(65536)
    lines = [line for line in got.decode().split("\r\n") if line.startswith("Idempotency-Key")]
    assert lines == [f"Idempotency-Key: {key}" for key in keys]


def test_bytes_that_are_not_http_are_answered_400_and_harm_nobody(sandbox: Sandbox) -> None:
    parts = urlsplit(sandbox.url)
    with socket.create_connection((parts.hostname or "", parts.port or 0), 10) as raw:
        raw.sendall(b"\x16\x03\x01 hello\r\n\r\n")
        assert raw.recv(100).startswith(b"HTTP/1.1 400")
    with open_shop(sandbox) as shop:
        assert shop.charge("k1").status == 200


def test_a_body_over_a_mebibyte_is_refused(sandbox: Sandbox) -> None:
    with open_shop(sandbox) as shop:
        big = shop.post("/v1/customers", {"name": "x" * (1 << 20)}, "k1")
        assert big.lost == "reset" or big.status == 400
        assert shop.effects() == []


def test_an_admin_call_that_is_wrong_says_what_is_wrong(sandbox: Sandbox) -> None:
    connection = HTTPConnection(urlsplit(sandbox.admin).netloc, timeout=10)
    for method, path, body, named in (
        ("GET", "/nothing", "", "no such call"),
        ("POST", "/account", "{", "Expecting"),
        ("POST", "/account", "{}", "account"),
        ("POST", "/move", '{"object_id": "pi_none", "status": "x"}', "object_id"),
        ("POST", "/plant", '{"account": "a", "operation": "x.y"}', "operation"),
    ):
        connection.request(method, path, body)
        answer = connection.getresponse()
        assert answer.status == 400
        assert named in json.loads(answer.read())["error"]
    connection.close()


def test_charges_of_sixteen_clients_at_once_are_all_counted(sandbox: Sandbox) -> None:
    with open_shop(sandbox) as shop, ThreadPoolExecutor(16) as pool:
        keys = [f"k{number % 50}" for number in range(200)]
        statuses = set(pool.map(lambda key: shop.charge(key).status, keys))
        assert statuses == {200}
        assert len(shop.effects()) == 50
        assert CHARGE["amount"] * 50 == sum(effect["amount"] for effect in shop.effects())
        assert shop.violations() == []
