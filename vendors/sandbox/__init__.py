"""A vendor that misbehaves on purpose: Stripe's v1 contract and the JSON APIs of other kinds of
vendors, a durable ledger, and the faults of networks, gateways and vendors.

`python -m vendors.sandbox --db PATH` runs it as a process of its own, so that it outlives a killed
worker; `vendors.sandbox.client.Sandbox` starts and drives it. It imports nothing of the outbox and
no vendor SDK.
"""

from pathlib import Path

# The recipes by which `http_json` talks to the JSON faces, one file each.
RECIPES = Path(__file__).parent / "recipes"
