"""Makes the sandbox lose things on purpose, for trying out what a person does about a doubt.

    lost_reply.py charge INVOICE     charges once: the charge lands; replies and events are lost
                                     from here on, and the vendor's lists cannot be read
    lost_reply.py dashboard INVOICE  prints the id of the charge, as the vendor's dashboard shows it
    lost_reply.py mend               everything works again

Needs the operator's settings of `outbox up`: `. .outbox/operator.env`.
"""

from __future__ import annotations

import os
import sys

from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from outbox import IntentMismatch, Invalid, Outbox, Scope, WriteTool
from vendors.sandbox.client import Sandbox

ACCOUNT = "sandbox"
charge = WriteTool(
    "charge_invoice",
    vendor="stripe",
    operation="payment_intents.create",
    side_effect="charge",
    identity=("invoice_id",),
    guard=("amount", "currency", "customer"),
    money=("amount", "currency"),
    ttl_s=2.0,  # a person is asked after two seconds, for the sake of the example
)


def main(verb: str, invoice_id: str = "") -> None:
    """One of the three above."""
    sandbox = Sandbox(os.environ["STRIPE_API_BASE"], os.environ["SANDBOX_ADMIN_URL"])
    if verb == "mend":
        sandbox.clear_faults(ACCOUNT)
    elif verb == "dashboard":
        for made in sandbox.objects(ACCOUNT, "payment_intents"):
            if made["metadata"].get("invoice_id") == invoice_id:
                print(made["id"])
    else:
        sandbox.fault("lost_ack", account=ACCOUNT)
        for lists in ("payment_intents", "payment_intents/search", "events"):
            sandbox.fault("unavailable_503", account=ACCOUNT, endpoint=f"GET /v1/{lists}")
        sandbox.webhook_fault("never", account=ACCOUNT)
        collect(invoice_id)


def collect(invoice_id: str) -> None:
    """What an agent's tool does."""
    outbox = Outbox.from_env()
    args = {
        "invoice_id": invoice_id,
        "amount": 4900,
        "currency": "usd",
        "customer": "cus_1",
        "confirm": True,
        "payment_method": "pm_card_visa",
        "automatic_payment_methods": {"enabled": True, "allow_redirects": "never"},
    }
    engine = create_engine(os.environ["DATABASE_URL"])
    with Session(engine) as session, session.begin():
        intent = outbox.enqueue(session, charge, Scope(tenant="acme", run_id="invoices"), args)
    print(outbox.wait(intent).as_json())


if __name__ == "__main__":
    words = sys.argv[1:]
    if words != ["mend"] and not (len(words) == 2 and words[0] in ("charge", "dashboard")):
        sys.exit(__doc__)
    try:
        main(*words)
    except (Invalid, IntentMismatch) as refused:
        print(refused, file=sys.stderr)
        sys.exit(2)
