"""Scheduled runs on one machine: systemd units or a crontab line."""
