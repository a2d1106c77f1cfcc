"""What the page consists of, and what it does in a browser, as far as there is one."""

import base64
import hashlib
import html
import json
import re
import shutil
import subprocess

import pytest

from detloom.pipelines.serving.page import format_page
from detloom.pipelines.serving.served_model import load_served_model

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chromium-headless-shell")


@pytest.fixture(scope="module")
def page(served):
    return format_page(served, min_score=0.25, max_request_bytes=1000)


def settings_of(page):
    return json.loads(html.unescape(re.search(r'data-settings="([^"]*)"', page.html.decode())[1]))


def test_the_policy_allows_the_script_of_the_page_and_no_other(page):
    (script,) = re.findall(r"<script>(.*?)</script>", page.html.decode(), re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in page.policy
    assert "http-equiv" not in page.html.decode()


def test_the_page_fetches_nothing_from_elsewhere(page):
    assert not re.search(r"(src|href|url)\s*[=(]\s*[\"']?(https?:)?//", page.html.decode())


def test_the_script_knows_where_to_ask_and_what_classes_are_called(page):
    settings = settings_of(page)
    assert (settings["url"], settings["minScore"]) == ("/v1/models/cells/versions/7:predict", 0.25)
    # The first two colours of pictures elsewhere.
    assert settings["classes"] == {
        "1": {"name": "red", "rgb": [0, 114, 178]},
        "2": {"name": "green", "rgb": [230, 159, 0]},
    }


def test_the_script_knows_when_boxes_are_in_pixels(served, page, model_dir, tmp_path):
    assert settings_of(page)["hasPixelBoxes"] is False
    shutil.copytree(model_dir, tmp_path / "model")
    (tmp_path / "model" / "assets" / "contract.json").write_text('{"box_units": "pixels"}')
    in_pixels = load_served_model(tmp_path / "model", "cells")
    assert settings_of(format_page(in_pixels, min_score=0.5, max_request_bytes=1000))["hasPixelBoxes"] is True


def test_names_of_classes_are_text_and_never_markup(served, monkeypatch):
    from detloom.schemas.label_map import LabelMap

    name = '"><script>alert(1)</script>'
    monkeypatch.setattr(served, "label_map", LabelMap.from_names([name]))
    page = format_page(served, min_score=0.5, max_request_bytes=1000)
    assert page.html.decode().count("<script>") == 1
    assert settings_of(page)["classes"]["1"]["name"] == name


def test_a_model_that_takes_no_encoded_pictures_gets_a_page_that_says_so(served, monkeypatch):
    monkeypatch.setattr(served, "signatures", {"serving_default": served.signatures["serving_default"]})
    text = format_page(served, min_score=0.5, max_request_bytes=1000).html.decode()
    assert "no signature for encoded pictures" in text
    assert "<script>" not in text


def test_the_page_says_that_it_is_no_production_server(page):
    assert b"This is no production server." in page.html


def test_a_browser_draws_what_the_model_finds(server, page, encoded, tmp_path):
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        pytest.skip(f"no browser on the PATH; looked for: {', '.join(BROWSERS)}")
    # A second script gives the page a picture as if it had been pasted; the policy is made to allow it.
    data = base64.b64encode(encoded).decode()
    deed = f"""const bytes = Uint8Array.from(atob("{data}"), (c) => c.charCodeAt(0));
        take(new File([bytes], "picture.png", {{ type: "image/png" }}));"""
    digest = base64.b64encode(hashlib.sha256(deed.encode()).digest()).decode()
    text = page.html.decode().replace("</body>", f"<script>{deed}</script></body>")
    before = server.page
    server.page = type(page)(text.encode(), page.policy.replace("script-src", f"script-src 'sha256-{digest}'"))
    try:
        options = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}", "--dump-dom"]
        command = [browser, *options, "--virtual-time-budget=20000", f"{server.url}/"]
        dom = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    finally:
        server.page = before
    assert re.findall(r"<text [^>]*>([^<]*)</text>", dom) == ["green 0.80", "red 0.90"]
    rows = re.findall(r'<td class="name"><span[^>]*></span>(\w+)</td><td class="n">([^<]*)</td>', dom)
    assert rows == [("red", "0.900"), ("green", "0.800")]
