"""Options, help texts and exit codes that commands share."""
