"""What the mail server does with a message that it takes in."""

from __future__ import annotations

from vendors.sandbox.ledger import Json, Ledger, dumps


def deliver(ledger: Ledger, account: str, mail: Json) -> Json:
    """Takes a message in: one effect, whatever was taken in before."""
    message: Json = mail["message"]
    at = ledger.now(account)
    ledger.run(
        "insert into objects (id, account, kind, created, at, type, body)"
        " values (?,?,'messages',?,?,'',?)",
        ledger.new_id("mail_"), account, int(at), at, dumps(message),
    )  # fmt: skip
    ledger.run(
        "insert into effects (account, kind, object_id, key, outbox_id, outcome, request_id, at,"
        " recorded_at) values (?,'mail.send',?,?,?,'applied',?,?,?)",
        account, message["id"], message["id"], mail["outbox_id"], mail["request_id"], at,
        ledger.wall_s(),
    )  # fmt: skip
    return message
