"""The subcommands of `detloom`, one file each, with the modules that only commands use."""
