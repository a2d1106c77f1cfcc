"""Random changes to training pictures and their boxes. Every function is deterministic in its seed (int32 [2])."""
