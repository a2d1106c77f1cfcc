"""The one exception that means "the user can fix this"."""


class InputError(ValueError):
    """A mistake in what the user gave us: a file, a setting, a data set.

    The message is one sentence that stands alone: what, where (file, line, record key), got, allowed, next step.
    Command lines print it without a traceback; everything else that escapes is our bug and keeps its traceback.
    """
