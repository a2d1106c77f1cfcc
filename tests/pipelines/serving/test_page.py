"""Content of the page, and its behavior in a browser if one is installed."""

import base64
import hashlib
import html
import io
import json
import re

import pytest
from PIL import Image

from detloom.pipelines.serving.page import format_page


@pytest.fixture(scope="module")
def page(served):
    return format_page(served, 0.25)


def settings_of(page):
    return json.loads(html.unescape(re.search(r'data-settings="([^"]*)"', page.html.decode())[1]))


def test_policy_allows_only_the_script_of_the_page(page):
    (script,) = re.findall(r"<script>(.*?)</script>", page.html.decode(), re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in page.policy
    assert "http-equiv" not in page.html.decode()


def test_page_loads_nothing_from_elsewhere(page):
    assert not re.search(r"(src|href|url)\s*[=(]\s*[\"']?(https?:)?//", page.html.decode())


def test_settings_have_url_and_class_names(page):
    settings = settings_of(page)
    assert (settings["url"], settings["hasPixelBoxes"]) == ("/v1/models/cells/versions/7:predict", False)
    # The first two colors of all drawings.
    assert settings["classes"] == {
        "1": {"name": "red", "rgb": [0, 114, 178]},
        "2": {"name": "green", "rgb": [230, 159, 0]},
    }
    assert 'value="0.25"' in page.html.decode()
    assert "not a production server" in page.html.decode()


@pytest.mark.reliability("hostile input", "serve")
def test_class_names_are_escaped(served, monkeypatch):
    from detloom.schemas.contracts.label_map import LabelMap

    name = '"><script>alert(1)</script>'
    monkeypatch.setattr(served, "label_map", LabelMap.from_names([name]))
    page = format_page(served, 0.5)
    assert page.html.decode().count("<script>") == 1
    assert settings_of(page)["classes"]["1"]["name"] == name


def shown_in_browser(browser, server, page, image):
    """Return the rows of the table after the page got an image, by a script that its policy then allows."""
    data = base64.b64encode(image).decode()
    script = f"""const bytes = Uint8Array.from(atob("{data}"), (c) => c.charCodeAt(0));
        take(new File([bytes], "image"));"""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    text = page.html.decode().replace("</body>", f"<script>{script}</script></body>")
    before = server.page
    server.page = type(page)(text.encode(), page.policy.replace("script-src", f"script-src 'sha256-{digest}'"))
    try:
        tab = browser.open(f"{server.url}/")
        tab.wait_for("document.querySelectorAll('tbody tr').length > 0")
        rows = tab.evaluate("[...document.querySelectorAll('tbody tr')].map((row) => row.innerText).join('\\n')")
        pixel = tab.evaluate(
            "document.getElementById('canvas').getContext('2d').getImageData(144, 240, 1, 1).data.join()"
        )
        tab.close()
    finally:
        server.page = before
    return [row.split() for row in rows.splitlines()], pixel


def test_browser_draws_the_detections(browser, server, page, encoded):
    rows, pixel = shown_in_browser(browser, server, page, encoded)
    assert rows == [
        ["red", "0.900", "40", "10", "60", "20"],
        ["green", "0.800", "0", "30", "20", "40"],
    ]
    assert pixel == "230,159,0,255"  # the upper edge of the green object, in the color of its class


def test_browser_sends_an_image_with_an_orientation_upright(browser, server, page, encoded):
    """Rotated by 180 degrees, the image has its objects where it is stored."""
    with Image.open(io.BytesIO(encoded)) as image:
        exif = image.getexif()
        exif[0x0112] = 3
        file = io.BytesIO()
        image.rotate(180).save(file, "PNG", exif=exif)
    rows, _ = shown_in_browser(browser, server, page, file.getvalue())
    assert [row[0] for row in rows] == ["red", "green"]
    assert rows[0][2:] == ["40", "10", "60", "20"]
