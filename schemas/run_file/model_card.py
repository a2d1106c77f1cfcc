"""Texts of the model card that are written in the run file."""

from dataclasses import dataclass, fields

from detloom.schemas.errors import check

# Files of a model card, in its artifact and in a pushed version.
CARD_JSON = "model_card.json"
CARD_MARKDOWN = "model_card.md"
CARD_PAGE = "model_card.html"
CARD_FILES = (CARD_JSON, CARD_MARKDOWN, CARD_PAGE)


@dataclass(frozen=True, kw_only=True)
class ModelCardSettings:
    """Texts of the model card. Empty texts appear as "not stated"."""

    purpose: str = ""
    """Purpose of the model, in one or two sentences."""
    intended_use: str = ""
    """Intended use and users."""
    out_of_scope: str = ""
    """Uses for which the model is not suitable."""
    owners: tuple[str, ...] = ()
    """Responsible people or teams."""
    contact: str = ""
    """Contact address."""
    license: str = ""
    """License of the model, such as `Apache-2.0`."""
    data_license: str = ""
    """License of the images and labels."""
    data_source: str = ""
    """Origin of the images and the labels."""
    citation: str = ""
    """Citation, such as a BibTeX entry; line breaks are kept."""
    limits: tuple[str, ...] = ()
    """Known limitations, in addition to those that the card derives from the metrics."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, tuple):
                check(all(text.strip() for text in value), field.name, "an entry without text", "text in each entry")
