"""Access to a real cluster for the tests beside this folder: settings, pods, a helper pod, and runs by command."""
