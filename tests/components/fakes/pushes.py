"""Pushes and rollbacks at a given time, of folders that have no graph to load."""

from detloom.components.pusher.manifest import Origin
from detloom.components.pusher.push import push_model, roll_back


def no_check(folder):
    """Accept every copy."""


def push(model_dir, push_dir, at=1000.0, **options):
    origin = Origin(model_uri=f"uri of {model_dir.name}", by="ann", host="laptop")
    return push_model(model_dir, push_dir, **{"origin": origin, "check": no_check, "now": lambda: at, **options})


def roll_back_at(push_dir, at, **options):
    return roll_back(push_dir, **{"reason": "bad boxes", "check": no_check, "now": lambda: at, **options})
