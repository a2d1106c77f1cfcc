"""Content of the page, and its behavior in a browser if one is installed."""

import base64
import hashlib
import html
import json
import re
import shutil

import pytest

from detloom.pipelines.serving.page import format_page
from detloom.pipelines.serving.served_model import load_served_model


@pytest.fixture(scope="module")
def page(served):
    return format_page(served, min_score=0.25, max_request_bytes=1000)


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
    assert (settings["url"], settings["minScore"]) == ("/v1/models/cells/versions/7:predict", 0.25)
    # The first two colors of all drawings.
    assert settings["classes"] == {
        "1": {"name": "red", "rgb": [0, 114, 178]},
        "2": {"name": "green", "rgb": [230, 159, 0]},
    }


def test_settings_say_if_boxes_are_in_pixels(served, page, tiny_model_dir, tmp_path):
    assert settings_of(page)["hasPixelBoxes"] is False
    shutil.copytree(tiny_model_dir, tmp_path / "model")
    (tmp_path / "model" / "assets" / "contract.json").write_text('{"box_units": "pixels"}')
    in_pixels = load_served_model(tmp_path / "model", "cells")
    assert settings_of(format_page(in_pixels, min_score=0.5, max_request_bytes=1000))["hasPixelBoxes"] is True


@pytest.mark.reliability("hostile input", "serve")
def test_class_names_are_escaped(served, monkeypatch):
    from detloom.schemas.contracts.label_map import LabelMap

    name = '"><script>alert(1)</script>'
    monkeypatch.setattr(served, "label_map", LabelMap.from_names([name]))
    page = format_page(served, min_score=0.5, max_request_bytes=1000)
    assert page.html.decode().count("<script>") == 1
    assert settings_of(page)["classes"]["1"]["name"] == name


def test_page_of_a_model_without_encoded_images_has_no_script(served, monkeypatch):
    monkeypatch.setattr(served, "signatures", {"serving_default": served.signatures["serving_default"]})
    text = format_page(served, min_score=0.5, max_request_bytes=1000).html.decode()
    assert "no signature for encoded images" in text
    assert "<script>" not in text


def test_page_says_that_it_is_not_a_production_server(page):
    assert b"not a production server" in page.html


def test_browser_draws_the_detections(browser, server, page, encoded):
    # A second script gives the page an image as if it was pasted; the policy is changed to allow it.
    data = base64.b64encode(encoded).decode()
    script = f"""const bytes = Uint8Array.from(atob("{data}"), (c) => c.charCodeAt(0));
        take(new File([bytes], "image.png", {{ type: "image/png" }}));"""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    text = page.html.decode().replace("</body>", f"<script>{script}</script></body>")
    before = server.page
    server.page = type(page)(text.encode(), page.policy.replace("script-src", f"script-src 'sha256-{digest}'"))
    try:
        tab = browser.open(f"{server.url}/")
        tab.wait_for("document.querySelectorAll('tbody tr').length > 0")
        dom = tab.evaluate("document.documentElement.outerHTML")
        tab.close()
    finally:
        server.page = before
    assert re.findall(r"<text [^>]*>([^<]*)</text>", dom) == ["green 0.80", "red 0.90"]
    rows = re.findall(r'<td class="name"><span[^>]*></span>(\w+)</td><td class="n">([^<]*)</td>', dom)
    assert rows == [("red", "0.900"), ("green", "0.800")]
