"""The contract every adapter keeps, as checks that run against its face of the sandbox.

`outbox vendor check --all` runs them, and the tests do. A new vendor adds a face in
``vendors.suite.faces`` and is held to all of them.
"""
