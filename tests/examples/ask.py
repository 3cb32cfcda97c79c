"""Asks an example application to charge an invoice: ask.py SOCKET PATH"""

from __future__ import annotations

import sys
from pathlib import Path
from threading import Event

import httpx

PAYMENT = {
    "amount": 4900,
    "currency": "usd",
    "customer": "cus_1",
    "confirm": True,
    "payment_method": "pm_card_visa",
    "automatic_payment_methods": {"enabled": True, "allow_redirects": "never"},
}


def main(socket: str, path: str) -> int:
    """Prints what the application answers; 0 where the charge is settled."""
    while not Path(socket).is_socket():
        Event().wait(0.1)
    with httpx.Client(transport=httpx.HTTPTransport(uds=socket), timeout=30) as client:
        answer = client.post(f"http://app/{path}", json=PAYMENT)
    print(answer.text)
    return 0 if answer.is_success and answer.json()["state"] == "settled" else 1


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))
