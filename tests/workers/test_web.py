"""The web process: routes as ASGI, size limits over real sockets, health from Postgres."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from urllib.parse import urlsplit

import httpx
import psycopg
import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.routing import Mount

from outbox.errors import SettingsError
from outbox.settings import Settings
from outbox.store import switches
from resolvers.health import health, periods_s, readiness
from resolvers.receiving import Receiver
from tests.resolvers.deliveries import Delivery, event, signed
from tests.resolvers.ledger import ACCOUNT, Ledger, open_ledger
from workers import web
from workers.folders import until

LIMIT_S = 20
MOST = 4000


@pytest.fixture
def ledger(database: str) -> Iterator[Ledger]:
    with open_ledger(database, webhook_max_bytes=MOST, host="127.0.0.1", port=0) as found:
        yield found


@pytest.fixture
def receiver(ledger: Ledger) -> Iterator[Receiver]:
    found = Receiver(ledger.settings)
    yield found
    found.close()


def ask(app: Starlette, method: str, path: str, **options: object) -> httpx.Response:
    """One request to the application itself."""

    async def run() -> httpx.Response:
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://web") as client:
            return await client.request(method, path, **options)  # type: ignore[arg-type]

    return asyncio.run(run())


@contextmanager
def served(app: Starlette) -> Iterator[str]:
    """The application under a real uvicorn."""
    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(app, http="h11", lifespan="off", log_config=None, access_log=False)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(LIMIT_S)
        listener.close()


def raw(url: str, head: str, *parts: bytes) -> tuple[int, int]:
    """Writes a request as given; the status that came back and how many bytes were taken."""
    address = urlsplit(url)
    assert address.hostname is not None
    taken = 0
    with socket.create_connection((address.hostname, address.port or 80), LIMIT_S) as wire:
        wire.sendall(f"POST /webhooks/stripe/default HTTP/1.1\r\nHost: web\r\n{head}\r\n".encode())
        try:
            for part in parts:
                wire.sendall(part)
                taken += len(part)
        except OSError:
            pass
        answer = b""
        try:
            while b"\r\n" not in answer and (chunk := wire.recv(4096)):
                answer += chunk
        except OSError:
            pass
    return (int(answer.split()[1]) if answer else 0), taken


def chunked(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


def test_a_genuine_webhook_over_http_is_stored_before_it_is_acknowledged(
    ledger: Ledger, receiver: Receiver
) -> None:
    delivery = signed(json.dumps(event(), indent=2, ensure_ascii=False), ledger.now())
    with served(web.build_app(receiver)) as url:
        answer = httpx.post(
            f"{url}/webhooks/stripe/default",
            content=delivery.body,
            headers=delivery.headers,
            trust_env=False,
        )
    assert (answer.status_code, answer.text) == (200, "stored")
    assert [bytes(row["body"]) for row in ledger.inbox()] == [delivery.body]


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        ("/webhooks/stripe/default", {}, 400),
        ("/webhooks/stripe/nobody", {}, 404),
        ("/webhooks/other/default", {}, 404),
        ("/webhooks/stripe", {}, 404),
        ("/webhooks/stripe/default/more", {}, 404),
    ],
)
def test_what_is_not_genuine_or_not_here_is_refused(
    ledger: Ledger, receiver: Receiver, path: str, headers: dict[str, str], status: int
) -> None:
    app = web.build_app(receiver)
    assert ask(app, "POST", path, content=b"{}", headers=headers).status_code == status
    assert ledger.inbox() == []


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS"])
def test_only_a_post_delivers(receiver: Receiver, method: str) -> None:
    answer = ask(web.build_app(receiver), method, "/webhooks/stripe/default")
    assert answer.status_code == 405
    assert answer.headers["allow"] == "POST"


def test_a_body_that_says_it_is_too_large_is_not_read(ledger: Ledger, receiver: Receiver) -> None:
    with served(web.build_app(receiver)) as url:
        status, _ = raw(url, f"Content-Length: {10**12}\r\n")
        assert status == 413
    assert ledger.inbox() == []


def test_a_body_that_does_not_say_how_large_it_is_is_cut_at_the_limit(
    ledger: Ledger, receiver: Receiver
) -> None:
    mebibyte = chunked(b"x" * (1 << 20))
    with served(web.build_app(receiver)) as url:
        status, taken = raw(url, "Transfer-Encoding: chunked\r\n", *[mebibyte] * 256)
        # The answer may be lost to a reset when so much of the request was never read.
        assert status in (413, 0)
        assert taken < 256 * len(mebibyte), "it was all read"
        status, _ = raw(url, "Transfer-Encoding: chunked\r\n", chunked(b"x" * (MOST + 1)))
        assert status == 413
    assert ledger.inbox() == []


def test_a_content_length_that_lies_stores_nothing(ledger: Ledger, receiver: Receiver) -> None:
    delivery = signed(event(), ledger.now())
    (signature,) = delivery.headers.values()
    head = f"Stripe-Signature: {signature}\r\nContent-Length: {len(delivery.body) - 1}\r\n"
    with served(web.build_app(receiver)) as url:
        status, _ = raw(url, head, delivery.body)
        assert status == 400
        both = f"{head}Transfer-Encoding: chunked\r\n"
        assert raw(url, both, chunked(b"x" * (MOST + 1)))[0] in (400, 413)
    assert ledger.inbox() == []


def test_a_body_that_stops_coming_ends_with_its_connection(
    ledger: Ledger, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(web, "_BODY_S", 0.3)
    with served(web.build_app(receiver)) as url:
        address = urlsplit(url)
        with socket.create_connection((address.hostname, address.port), LIMIT_S) as wire:
            head = "POST /webhooks/stripe/default HTTP/1.1\r\nHost: web\r\nContent-Length: 100"
            wire.sendall(f"{head}\r\n\r\nx".encode())
            answer = b"".join(iter(lambda: wire.recv(4096), b""))  # to the end of the connection
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b"connection: close" in answer.lower(), "a dripping sender could go on"
    assert ledger.inbox() == []


def test_an_address_that_is_nearly_right_leads_nowhere(receiver: Receiver) -> None:
    app = web.build_app(receiver)
    for method, path in (("POST", "/webhooks/stripe/default/"), ("GET", "/livez/")):
        answer = ask(app, method, path, headers={"Host": "evil.example"})
        assert (answer.status_code, "location" in answer.headers) == (404, False)


def test_a_body_at_the_limit_arrives_whole_in_many_pieces(
    ledger: Ledger, receiver: Receiver
) -> None:
    body = event()
    body["pad"] = "x" * (MOST - len(signed({**body, "pad": ""}, 1).body))
    delivery = signed(body, ledger.now())
    assert len(delivery.body) == MOST
    (signature,) = delivery.headers.values()
    pieces = [chunked(delivery.body[n : n + 7]) for n in range(0, MOST, 7)]
    with served(web.build_app(receiver)) as url:
        head = f"Stripe-Signature: {signature}\r\nTransfer-Encoding: chunked\r\n"
        assert raw(url, head, *pieces, b"0\r\n\r\n")[0] == 200
    assert [bytes(row["body"]) for row in ledger.inbox()] == [delivery.body]


def test_the_routes_can_be_mounted_in_an_application_of_ones_own(
    ledger: Ledger, receiver: Receiver
) -> None:
    app = Starlette(routes=[Mount("/outbox", routes=web.webhook_routes(receiver))])
    delivery = signed(event(), ledger.now())
    answer = ask(
        app,
        "POST",
        "/outbox/webhooks/stripe/default",
        content=delivery.body,
        headers=delivery.headers,
    )
    assert answer.status_code == 200
    assert len(ledger.inbox()) == 1


def test_with_the_database_away_the_process_lives_is_not_ready_and_takes_no_webhook() -> None:
    with socket.socket() as unheard:
        unheard.bind(("127.0.0.1", 0))
        settings = Settings(
            database_url=f"postgresql+psycopg://x@127.0.0.1:{unheard.getsockname()[1]}/x",
            statement_timeout_s=0.3,
            accounts={("stripe", "default"): ACCOUNT},
        )
        receiver = Receiver(settings)
        app = web.build_app(receiver)
        assert ask(app, "GET", "/livez").status_code == 200
        for path in ("/readyz", "/healthz"):
            answer = ask(app, "GET", path)
            assert answer.status_code == 503
            assert len(answer.json()["problems"]) == 1
        delivery = signed(event(), 1)
        answer = ask(
            app,
            "POST",
            "/webhooks/stripe/default",
            content=delivery.body,
            headers=delivery.headers,
        )
        assert answer.status_code == 503
        receiver.close()


def test_a_schema_that_is_missing_or_older_is_not_ready(ledger: Ledger, receiver: Receiver) -> None:
    app = web.build_app(receiver)
    assert ask(app, "GET", "/readyz").status_code == 200
    ledger.sql("UPDATE outbox.alembic_version SET version_num = '0000'")
    assert ask(app, "GET", "/readyz").status_code == 503
    assert readiness(ledger.store)["schema"] == "0000"
    ledger.sql("DROP TABLE outbox.alembic_version")
    answer = ask(app, "GET", "/readyz")
    assert answer.status_code == 503
    assert answer.json()["schema"] is None or answer.json()["problems"]


def beat(ledger: Ledger) -> None:
    with ledger.store.transaction() as tx:
        for role in periods_s(ledger.settings):
            switches.beat(tx, role, "host:1")


def test_health_is_good_while_everything_beats_and_names_each_role_that_does_not(
    ledger: Ledger, receiver: Receiver
) -> None:
    app = web.build_app(receiver)
    never = ask(app, "GET", "/healthz")
    assert never.status_code == 503
    assert len(never.json()["problems"]) == len(periods_s(ledger.settings))
    beat(ledger)
    assert ask(app, "GET", "/healthz").status_code == 200
    # The join's three periods are over; the escalation's, three times 15 s, are not.
    ledger.forward(20)
    found = health(ledger.store, ledger.directory)
    assert not found["ok"]
    assert sorted(p.split()[1] for p in found["problems"]) == ["expire", "join", "page", "resolve"]
    beat(ledger)
    assert health(ledger.store, ledger.directory)["ok"]


def test_a_due_intent_that_nobody_sends_is_a_problem_and_one_behind_a_switch_is_not(
    ledger: Ledger,
) -> None:
    ledger.intent()
    ledger.forward(200)
    beat(ledger)
    found = health(ledger.store, ledger.directory)
    assert [p.split(":")[0] for p in found["problems"]] == ["sends"]
    assert found["gauges"]["oldest_due_s"] >= 200
    with ledger.store.transaction() as tx:
        switches.pause(tx, "stripe", "default", kind="pause", reason="maintenance", by="ann")
    found = health(ledger.store, ledger.directory)
    assert found["ok"]
    assert [s["holder"] for s in found["switches"]] == ["vendor:stripe/default"]
    assert len(found["notices"]) == 2, "the switch and its question"


def test_an_intent_that_waits_for_its_lane_is_no_problem_of_its_own(ledger: Ledger) -> None:
    head, behind = ledger.intent(), ledger.intent()
    ledger.sql(
        "UPDATE outbox.intents SET lane = 'stripe/default/' "
        "|| left(encode(sha256(convert_to(tenant, 'UTF8')), 'hex'), 32) || '/one'"
    )
    ledger.sql(
        "UPDATE outbox.intents SET status = 'unknown', doubt = 1, first_sent_at = outbox.clock() "
        "WHERE id = %(id)s",
        {"id": head},
    )
    ledger.forward(200)
    beat(ledger)
    assert health(ledger.store, ledger.directory)["gauges"]["oldest_due_s"] is None
    assert head != behind


def test_pages_and_events_that_lie_about_are_problems_and_a_muted_page_is_not(
    ledger: Ledger,
) -> None:
    with ledger.store.transaction() as tx:
        tx.run("DELETE FROM outbox.heartbeats")
    escalation = ledger.escalate(ledger.intent())
    ledger.sql("UPDATE outbox.intents SET due_at = outbox.clock() + INTERVAL '1 day'")
    ledger.sql(
        "INSERT INTO outbox.webhook_inbox (vendor, account, mode, event_id, state, due_at, "
        "received_at) VALUES ('stripe', 'default', 'test', 'evt_1', 'new', outbox.clock(), "
        "outbox.clock())"
    )
    ledger.forward(200)
    beat(ledger)
    found = health(ledger.store, ledger.directory)
    assert sorted(p.split(":")[0] for p in found["problems"]) == ["pages", "webhooks"]
    assert found["gauges"]["escalations_open"] == 1
    ledger.sql(
        "UPDATE outbox.escalations SET muted_until = outbox.clock() + INTERVAL '1 hour' "
        "WHERE id = %(id)s",
        {"id": escalation},
    )
    ledger.sql("UPDATE outbox.webhook_inbox SET due_at = NULL, state = 'foreign'")
    found = health(ledger.store, ledger.directory)
    assert found["ok"]
    assert found["notices"] == ["escalations: 1 open (1 muted)"]


def test_health_is_read_without_waiting_for_a_writer(ledger: Ledger) -> None:
    beat(ledger)
    with psycopg.connect(ledger.settings.database_url.replace("+psycopg", "")) as other:
        other.execute("UPDATE outbox.heartbeats SET at = at")
        assert health(ledger.store, ledger.directory)["ok"]


@contextmanager
def web_process(database: str, **env: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """`serve` in a process of its own, and its address."""
    program = (
        "import sys; from outbox.settings import Settings; from workers.web import serve\n"
        "sys.exit(serve(Settings.from_env(), ready=lambda url: print(url, flush=True)))\n"
    )
    started = subprocess.Popen(
        [sys.executable, "-c", program],
        env={"PATH": os.environ["PATH"], "DATABASE_URL": database, "PORT": "0", **env},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert started.stdout is not None
    try:
        yield started, started.stdout.readline().strip()
    finally:
        started.kill()
        started.wait()
        started.stdout.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_web_process_says_where_it_listens_and_ends_in_good_order(
    database: str, number: signal.Signals
) -> None:
    with web_process(database) as (started, url):
        assert httpx.get(f"{url}/livez", trust_env=False).status_code == 200
        assert httpx.get(f"{url}/readyz", trust_env=False).status_code == 200
        started.send_signal(number)
        assert started.wait(LIMIT_S) == 0


def test_an_answer_under_way_is_finished_when_the_process_is_told_to_end(
    ledger: Ledger,
) -> None:
    env = {
        "STRIPE_API_KEY": "sk_test_nowhere",
        "STRIPE_WEBHOOK_SECRET": ACCOUNT.webhook_secrets[0],
        "OUTBOX_LOCK_TIMEOUT_S": "15",
        "OUTBOX_STATEMENT_TIMEOUT_S": "15",
    }
    delivery = signed(event(), ledger.now())
    answers: list[int] = []
    url = ledger.settings.database_url
    with web_process(url, **env) as (started, address):

        def post() -> None:
            answers.append(_post(address, delivery))

        with psycopg.connect(url.replace("+psycopg", "")) as other:
            other.execute("LOCK TABLE outbox.webhook_inbox IN ACCESS EXCLUSIVE MODE")
            sender = threading.Thread(target=post)
            sender.start()
            assert until(_blocked(ledger), LIMIT_S)
            started.terminate()
            assert until(lambda: _refused(address), LIMIT_S)
            other.rollback()
        sender.join()
        assert started.wait(LIMIT_S) == 0
    assert answers == [200]
    assert len(ledger.inbox()) == 1


def _post(address: str, delivery: Delivery) -> int:
    url = f"{address}/webhooks/stripe/default"
    return httpx.post(
        url, content=delivery.body, headers=delivery.headers, trust_env=False, timeout=LIMIT_S
    ).status_code


def _refused(address: str) -> bool:
    try:
        httpx.get(f"{address}/livez", trust_env=False)
    except httpx.ConnectError:
        return True
    except httpx.TransportError:
        return False  # taken in the moment in which the listener was closed
    return False


def _blocked(ledger: Ledger) -> Callable[[], bool]:
    return lambda: bool(
        ledger.sql("SELECT 1 FROM pg_locks WHERE NOT granted AND relation IS NOT NULL")
    )


def test_an_address_that_is_taken_or_not_ours_is_a_setting_s_fault(ledger: Ledger) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for settings in (
            replace(ledger.settings, port=port),
            replace(ledger.settings, host="192.0.2.1"),
            replace(ledger.settings, port=70_000),
        ):
            with pytest.raises(SettingsError) as refused:
                web.serve(settings)
            assert "PORT" in refused.value.problems[0][0]


def test_a_live_account_without_a_word_about_pagers_is_refused_at_start_up(
    ledger: Ledger,
) -> None:
    live = {("stripe", "default"): replace(ACCOUNT, mode="live")}
    with pytest.raises(SettingsError) as refused:
        web.serve(replace(ledger.settings, accounts=live, pagers=None))
    assert refused.value.problems[0][0] == "OUTBOX_PAGERS"
