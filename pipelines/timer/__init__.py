"""Runs by the clock on one machine: systemd units, or a line of a crontab."""
