"""Numbers of checks as people read them."""


def format_value(value: float, unit: str) -> str:
    """As people read it: shares as percent."""
    return f"{100 * value:.3g} %" if unit == "share" else f"{value:.3f}" if unit == "distance" else f"{value:.6g}"


def format_apart(value: float, threshold: float, unit: str) -> tuple[str, str]:
    """Both as `format_value`, with more digits where they would look the same and are not."""
    texts = format_value(value, unit), format_value(threshold, unit)
    suffix, factor = (" %", 100) if unit == "share" else ("", 1)
    for digits in range(4, 18):
        if texts[0] != texts[1] or value == threshold:
            break
        texts = f"{factor * value:.{digits}g}{suffix}", f"{factor * threshold:.{digits}g}{suffix}"
    return texts


# --- examples, splits, classes ---------------------------------------------------------------------------------------
