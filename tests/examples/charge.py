"""A plain script: record a charge beside your own rows, in your own transaction, and ask later."""

from __future__ import annotations

import os
import sys

from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session

from outbox import IntentMismatch, Invalid, Outbox, Scope, WriteTool

charge = WriteTool(
    "charge_invoice",
    vendor="stripe",
    operation="payment_intents.create",
    side_effect="charge",
    identity=("invoice_id",),
    guard=("amount", "currency", "customer"),
    money=("amount", "currency"),
)


def main(invoice_id: str) -> None:
    """Charges one invoice once, however often this is run."""
    outbox = Outbox.from_env()
    engine = create_engine(os.environ["DATABASE_URL"])
    args = {
        "invoice_id": invoice_id,
        "amount": 4900,
        "currency": "usd",
        "customer": "cus_1",
        "confirm": True,
        "payment_method": "pm_card_visa",
        "automatic_payment_methods": {"enabled": True, "allow_redirects": "never"},
    }
    with Session(engine) as session, session.begin():
        intent = outbox.enqueue(session, charge, Scope(tenant="acme", run_id="invoices"), args)
        session.execute(
            text("CREATE TABLE IF NOT EXISTS invoices (id text PRIMARY KEY, status text)")
        )
        session.execute(  # a retry leaves what is booked
            text("INSERT INTO invoices VALUES (:id, 'collecting') ON CONFLICT DO NOTHING"),
            {"id": invoice_id},
        )
    print(outbox.wait(intent).as_json())


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: charge.py INVOICE")
    try:
        main(sys.argv[1])
    except (Invalid, IntentMismatch) as refused:  # each names its field; nothing was recorded
        print(refused, file=sys.stderr)
        sys.exit(2)
