"""What only people know about a model: the part of its card that is written in the run file."""

from dataclasses import dataclass, fields

from detloom.schemas.checks import check

# The files of a card, in its artifact and in a pushed version.
CARD_JSON = "model_card.json"
CARD_MARKDOWN = "model_card.md"
CARD_PAGE = "model_card.html"
CARD_FILES = (CARD_JSON, CARD_MARKDOWN, CARD_PAGE)


@dataclass(frozen=True, kw_only=True)
class ModelCardConfig:
    """What the model card says beside the numbers; what is left empty stands there as "not stated"."""

    purpose: str = ""
    """What the model is for, in a sentence or two."""
    intended_use: str = ""
    """Where and by whom it is meant to be used."""
    out_of_scope: str = ""
    """What it must not be used for."""
    owners: tuple[str, ...] = ()
    """People or teams who answer for it."""
    contact: str = ""
    """Where to write to."""
    license: str = ""
    """License of the model, such as `Apache-2.0`."""
    data_license: str = ""
    """License of the images and labels."""
    data_source: str = ""
    """Where the images come from, and who labelled them."""
    citation: str = ""
    """How to cite it, such as a BibTeX entry; line ends are kept."""
    limits: tuple[str, ...] = ()
    """Known limits, beside those that the card finds in the numbers."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, tuple):
                check(all(text.strip() for text in value), field.name, "an entry without text", "text in each entry")
