"""Starts and drives a sandbox process. This file is the interface; what is behind it may change.

    from vendors.sandbox.client import Sandbox

    sandbox = Sandbox.start(folder / "vendor.sqlite")    # a process; it listens when this returns
    stripe.StripeClient(sandbox.api_key("acme"), base_addresses={"api": sandbox.url})
    sandbox.fault("lost_ack", account="acme", attempts=[1])   # each key's first answer is lost
    sandbox.effects("acme"); sandbox.requests("acme"); sandbox.oracle("acme")
    sandbox.stop()                                       # or kill(); start again on the same file

Accounts: `acme` or `acct_acme` is test mode (`sk_test_acme`), `acct_acme/live` is live mode
(`sk_live_acme`); they share nothing. An account comes into being at its first use. Reads of the
vendor's own clock are `now(account)`.

Request faults (`fault`): kind, account, key ("*"), endpoint ("POST *"; a pattern over
`payment_intents.create` and over `POST /v1/payment_intents`), attempts ([1], [1, 2]; None: all;
counted per key, per endpoint without one), after_s, lose ("reset", "hang", "close": how an answer
is lost), status (of do_not_retry), told (does a stored 500 say not to retry: True), times (None: no
limit). Kinds and what they do: `vendors.sandbox.faults.REQUEST_KINDS`, and `status:<word>`
(processing, requires_capture, requires_action, canceled, or a word nobody has heard of). Of the
rows that match a request, the first of each layer applies: one of the transport (TRANSPORT_KINDS),
one of the vendor (VENDOR_KINDS), one status; so a stored 500 can be lost on the way too.

Webhook faults (`webhook_fault`): kind, account, type ("payment_intent.*"), after_s, first_tries,
times. Kinds: `vendors.sandbox.faults.WEBHOOK_KINDS`. All rows that match an event apply.

Effects are rows {account, kind ("payment_intent.create", "refund.create", ...), object_id, amount,
currency, key, outbox_id, outbox_key (from the request's metadata), outcome ("applied", "declined",
"reversed", or "planted": not counted), request_id, at}.

Requests are rows {id, account, method, path, operation, key, body_sha256, api_version, at (vendor's
clock), arrived_at (real), attempt, origin ("client", or "transport" for late commits and
redeliveries), fault, status (as told to the client; None: nothing was), replayed, should_retry,
answered_at}.

JSON APIs of other vendors: an account's `base_url` is `json_url(face)`, its credential the API key;
the faces `keys`, `external_ids`, `references` and `nothing` and what each takes, shows and signs
are in `vendors.sandbox.json_face`. Faults go by endpoints as `payments.create`; the key of a
contact, in faults and requests, is its external id.

Mail: an account's `base_url` is `smtp_url` ("" without aiosmtpd), its credential `acme:any`; faults
go by the endpoint `messages.send`; see `vendors.sandbox.mail_face`.

The oracle is {"effects_by_intent": {outbox_id: {count, applied, declined, reversed, amount,
objects, keys, kinds, account}}, "violations": [{"check", "account", ...}]}; `count` is applied -
reversed, and an effect without outbox_id is named "<account>:<key>". Checks: body_changed,
endpoint_changed, api_version_changed, post_without_key, more_than_one_effect,
two_keys_for_one_intent, post_after_window, post_after_stored_500, post_after_do_not_retry.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

Json = dict[str, Any]
START_LIMIT_S = 30.0


class SandboxRefused(Exception):
    """The sandbox did not accept an admin call, or did not start; the text says why."""


class Sandbox:
    def __init__(
        self,
        url: str,
        admin: str,
        process: subprocess.Popen[bytes] | None = None,
        *,
        smtp_url: str = "",
    ) -> None:
        self.url = url
        self.admin = admin
        self.smtp_url = smtp_url
        self.process = process
        # Never through a proxy: the sandbox is on this machine.
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    @classmethod
    def start(
        cls,
        db_path: str | Path,
        *,
        port: int = 0,
        admin_port: int = 0,
        seed: int = 0,
        die_with_parent: bool = True,
    ) -> Sandbox:
        """Spawns the process in a session of its own and waits until it listens."""
        command = [
            sys.executable, "-m", "vendors.sandbox", "--db", str(Path(db_path).resolve()),
            "--port", str(port), "--admin-port", str(admin_port), "--seed", str(seed),
        ]  # fmt: skip
        if die_with_parent:
            command.append("--die-with-parent")
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE if die_with_parent else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            start_new_session=True,
            # `-m` looks in the current folder first: the package beside this file, wherever we are.
            cwd=Path(__file__).resolve().parents[2],
        )
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()
            raise SandboxRefused(f"the sandbox ended with code {process.wait()}; see its stderr")
        ready = json.loads(line)
        return cls(ready["url"], ready["admin"], process, smtp_url=ready["smtp"])

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def stop(self) -> int:
        """SIGTERM; returns the exit code (0)."""
        return self._end(signal.SIGTERM)

    def kill(self) -> int:
        """SIGKILL: what a power cut leaves is in the file."""
        return self._end(signal.SIGKILL)

    def _end(self, number: signal.Signals) -> int:
        assert self.process is not None
        self.process.send_signal(number)
        try:
            code = self.process.wait(START_LIMIT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()
        return code

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process is not None and self.process.poll() is None:
            self.stop()

    @staticmethod
    def api_key(account: str, *, live: bool = False) -> str:
        name, _, mode = account.removeprefix("acct_").partition("/")
        return f"sk_{'live' if live or mode == 'live' else 'test'}_{name}"

    def json_url(self, face: str) -> str:
        """The address of one JSON API."""
        return f"{self.url}/json/{face}"

    # ---- accounts

    def account(self, account: str) -> Json:
        """Its settings, and `now`, the vendor's clock for it."""
        return self._object("GET", "/account", account=account)

    def set_account(self, account: str, **settings: Any) -> Json:
        """Any field of `vendors.sandbox.ledger.Account`: clock_offset_s, honours_keys, livemode,
        key_window_s (24 h), events_lag_s, search_lag_s, list_lag_s (of the JSON APIs),
        search_enabled, api_version, any_customer,
        conflict_type, requests_per_s, webhook_retry_s, webhook_timeout_s."""
        return self._object("POST", "/account", account=account, **settings)

    def now(self, account: str) -> float:
        return float(self.account(account)["now"])

    def reset(self, account: str) -> None:
        """Forgets the account: objects, keys, ledger, faults, settings."""
        self._call("POST", "/reset", account=account)

    # ---- faults

    def fault(self, kind: str, *, account: str = "*", **fields: Any) -> int:
        return int(self._call("POST", "/faults", kind=kind, account=account, **fields)[0])

    def webhook_fault(self, kind: str, *, account: str = "*", **fields: Any) -> int:
        return int(self._call("POST", "/webhook_faults", kind=kind, account=account, **fields)[0])

    def faults(self) -> list[Json]:
        return self._rows("/faults")

    def webhook_faults(self) -> list[Json]:
        return self._rows("/webhook_faults")

    def clear_faults(self, account: str | None = None) -> None:
        """Removes request and webhook faults of one account (of "*" too only with None: all)."""
        self._call("DELETE", "/faults", account=account)

    def accept_connections(self, accept: bool) -> None:
        """False closes the listening socket: every new connection is refused, for all accounts."""
        self._call("POST", "/listener", accept=accept)

    def held(self, account: str | None = None) -> list[Json]:
        """Late commits and other work not yet due."""
        return self._rows("/held", account=account)

    def release(self, account: str | None = None, kind: str | None = None) -> None:
        """Lets held work happen now. Kinds: late_commit, object_later, finish."""
        self._call("POST", "/release", account=account, kind=kind)

    # ---- webhooks

    def add_endpoint(self, account: str, url: str, secrets: str | list[str], **fields: Any) -> str:
        """Fields: enabled_events (["*"]), connect (False: own events), api_version.
        Two secrets give two v1 signatures."""
        added = self._call(
            "POST", "/endpoints", account=account, url=url, secrets=secrets, **fields
        )
        return str(added["id"])

    def replace_endpoint(self, endpoint_id: str, by: str) -> None:
        """Removes an endpoint; what waits for its address goes to that of the endpoint ``by``."""
        self._call("DELETE", "/endpoints", id=endpoint_id, by=by)

    def endpoints(self, account: str | None = None) -> list[Json]:
        """Rows {id, account, url, ...} of the registered webhook endpoints."""
        return self._rows("/endpoints", account=account)

    def deliveries(self, account: str | None = None) -> list[Json]:
        """Rows {event_id, event_type, url, body, tries, status, state}; states: waiting, done,
        given_up, never."""
        return self._rows("/deliveries", account=account)

    def wait_for_deliveries(self, account: str | None = None, limit_s: float = 10.0) -> bool:
        """True once nothing is waiting to be delivered."""
        answer = self._call("POST", "/deliveries/settle", account=account, limit_s=limit_s)
        return bool(answer["settled"])

    def deliver(
        self,
        account: str,
        url: str,
        secrets: str | list[str],
        *,
        event: Json | None = None,
        body: str | None = None,
        skew_s: float = 0.0,
    ) -> None:
        """Delivers a hand-made event, or any body, signed with any secrets at any time."""
        made: Json = {"event": event} if body is None else {"body": body}
        self._call(
            "POST", "/deliver", account=account, url=url, secrets=secrets, skew_s=skew_s, **made
        )

    # ---- the vendor acting by itself

    def move(self, object_id: str, status: str) -> Json:
        """The vendor changes an object's status (processing -> succeeded, ...), with its events."""
        return self._object("POST", "/move", object_id=object_id, status=status)

    def plant(self, account: str, operation: str, params: Json, **fields: Any) -> Json:
        """Executes `payment_intents.create` or the like, nobody asking: a second, a foreign object.

        Fields: object_id, key (noted in the effects), status. Returns the object, or {"error"}.
        """
        call = {"account": account, "operation": operation, "params": params, **fields}
        return self._object("POST", "/plant", **call)

    def objects(self, account: str, kind: str) -> list[Json]:
        """All of a kind (`payment_intents`, `checkout/sessions`, ...), oldest first, no lag."""
        return self._rows("/objects", account=account, kind=kind)

    # ---- the oracle

    def effects(self, account: str | None = None, key: str | None = None) -> list[Json]:
        return self._rows("/effects", account=account, key=key)

    def requests(self, account: str | None = None, key: str | None = None) -> list[Json]:
        return self._rows("/requests", account=account, key=key)

    def oracle(self, account: str | None = None) -> Json:
        return self._object("GET", "/oracle", account=account)

    def _object(self, method: str, path: str, **fields: Any) -> Json:
        answer = self._call(method, path, **fields)
        assert isinstance(answer, dict)
        return answer

    def _rows(self, path: str, **fields: Any) -> list[Json]:
        answer = self._call("GET", path, **fields)
        assert isinstance(answer, list)
        return answer

    def _call(self, method: str, path: str, **fields: Any) -> Any:
        given = {name: value for name, value in fields.items() if value is not None}
        url, body = self.admin + path, None
        if method == "POST":
            body = json.dumps(given).encode()
        elif given:
            url += "?" + urlencode(given)
        request = urllib.request.Request(url, body, method=method)  # noqa: S310 - our own http
        try:
            with self._opener.open(request, timeout=START_LIMIT_S) as response:
                return json.loads(response.read())
        except urllib.error.HTTPError as refused:
            raise SandboxRefused(json.loads(refused.read())["error"]) from None
