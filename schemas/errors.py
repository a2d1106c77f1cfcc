"""The one exception that means "the user can fix this"."""


class InputError(ValueError):
    """A mistake in what the user gave us: a file, a setting, a data set.

    The message is one sentence that stands alone: what, where (file, line, record key), got, allowed, next step.
    Command lines print it without a traceback; everything else that escapes is our bug and keeps its traceback.
    """


class FieldError(InputError):
    """A value that its dataclass refuses.

    Attributes:
        field: name of the field, dotted if it lies deeper; the message does not repeat it.
        other: name of the field that it contradicts, or empty.
    """

    def __init__(self, field: str, message: str, other: str = "") -> None:
        super().__init__(f"{field}: {message}")
        self.field, self.message, self.other = field, message, other
