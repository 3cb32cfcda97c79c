"""Settles what is in doubt: sweep, look-up, webhooks, escalation, paging, triage."""
