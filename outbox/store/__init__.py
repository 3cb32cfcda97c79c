"""The only code that runs SQL. Functions take a transaction; no call is ever made inside one."""
