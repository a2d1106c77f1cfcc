import pytest

from detloom.components.pages.load_template import load_template


@pytest.fixture
def render(tmp_path):
    """Render a template text as a file in a component's folder."""

    def render(text: str, **values: object) -> str:
        (tmp_path / "own.html.j2").write_text(text, encoding="utf-8")
        return load_template(tmp_path, "own.html.j2").render(**values)

    return render
