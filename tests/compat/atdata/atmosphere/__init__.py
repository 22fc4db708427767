"""Accounts, publishers and loaders against a server that obeys a script, and against a real one (`test_real_pds`)."""
