"""Format durations for people."""


def format_duration(seconds: float) -> str:
    """Return a duration in at most two units: "85 ms", "2.4 s", "3 min 5 s", "30 min", "2 h 4 min"."""
    if 0 < seconds < 1:
        return f"{1000 * seconds:.0f} ms"
    if seconds < 60:
        return f"{max(round(seconds, 1), 0):g} s"
    minutes, rest_seconds = divmod(round(seconds), 60)
    hours, rest_minutes = divmod(minutes, 60)
    parts = [(hours, "h"), (rest_minutes, "min")] if hours else [(minutes, "min"), (rest_seconds, "s")]
    return " ".join(f"{number} {unit}" for number, unit in parts if number)
