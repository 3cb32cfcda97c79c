"""Celery app, sender, web app, embedded servers and the command line: the composition root."""
