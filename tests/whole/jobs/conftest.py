"""The scripts here are run by `test_new_user_jobs.py`, not collected."""

collect_ignore_glob = ["*.py"]
