"""Take the screenshots of the documentation from the workspace of a finished run.

Usage: python scripts/docs_screenshots.py detloom_runs/demo --image photo.jpg [--name demo] [--out docs/measured]
       python scripts/docs_screenshots.py --notebook docs/notebooks/first_model.ipynb [--out docs/measured]

Writes evaluation_NAME_light.png, evaluation_NAME_dark.png and data_NAME.png, and, with --image, serve_page.png: the
page of `detloom serve` with the detections in that image. With --notebook, runs the notebook and writes
notebook_NAME_OUTPUT.png for each output that it shows. Needs Chromium on the PATH (Debian, Ubuntu: apt install
chromium) and installs nothing.
"""

import argparse
import base64
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # also without an installed detloom
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chromium-headless-shell")
WIDTH_PX = 1100
MAX_REQUEST_BYTES = 32_000_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("workspace", nargs="?", type=Path, help="workspace of a finished run, with metadata.sqlite")
    what.add_argument("--notebook", type=Path, help="notebook to run")
    parser.add_argument("--image", type=Path, help="photograph for the page of detloom serve")
    parser.add_argument("--name", help="part of the file names; default: the name of the workspace")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "measured")
    arguments = parser.parse_args()
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        sys.exit(f"No browser on the PATH; looked for {', '.join(BROWSERS)}. Debian, Ubuntu: apt install chromium")
    out = arguments.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    if arguments.notebook is not None:
        take_notebook(browser, arguments.notebook, arguments.name or arguments.notebook.stem, out)
    else:
        take_run(browser, arguments, out)


def take_run(browser: str, arguments: argparse.Namespace, out: Path) -> None:
    workspace = arguments.workspace.resolve()
    name = arguments.name or workspace.name
    evaluation, data, version = find_pages(workspace)
    take(browser, evaluation.as_uri(), out / f"evaluation_{name}_light.png", height_px=1500)
    take(browser, evaluation.as_uri(), out / f"evaluation_{name}_dark.png", height_px=1500, is_dark=True)
    take(browser, data.as_uri(), out / f"data_{name}.png", height_px=1500)
    if arguments.image is not None:
        take_serve_page(browser, version, arguments.image, out / "serve_page.png")


def find_pages(workspace: Path) -> tuple[Path, Path, Path]:
    """Return the evaluation report, the data report and the newest pushed version of the latest run."""
    from detloom.pipelines.local.summary import read_latest_run

    nodes = read_latest_run(workspace / "metadata.sqlite")
    evaluation = nodes["DetectionEvaluator"].folder("evaluation") / "report.html"
    data = nodes["DatasetValidator"].folder("report") / "report.html"
    versions = [folder for folder in (workspace / "serving").glob("*") if folder.name.isdecimal()]
    if not versions:
        sys.exit(f"{workspace / 'serving'}: no model was pushed; give the workspace of a run that pushed one.")
    return evaluation, data, max(versions, key=lambda folder: int(folder.name))


def take(
    browser: str, address: str, path: Path, *, height_px: int, width_px: int = WIDTH_PX, is_dark: bool = False
) -> None:
    """Write a screenshot of the top of a page, once its scripts have run."""
    options = ["--headless", "--disable-gpu", "--hide-scrollbars", f"--window-size={width_px},{height_px}"]
    options += ["--no-sandbox"]  # the pages are our own; root cannot use the sandbox
    options += ["--force-dark-mode"] if is_dark else []
    with tempfile.TemporaryDirectory() as profile:
        command = [browser, *options, f"--user-data-dir={profile}", "--virtual-time-budget=20000"]
        command += [f"--screenshot={path}", address]
        subprocess.run(command, check=True, capture_output=True, timeout=300)
    print(f"wrote {path}")


def take_notebook(browser: str, notebook: Path, name: str, out: Path) -> None:
    """Run a notebook in a temporary folder and take each cell that ends with `context.show(NODE.outputs["OUTPUT"])`."""
    import nbconvert
    import nbformat
    from nbclient import NotebookClient

    os.environ["PYTHONPATH"] = str(ROOT)
    content = nbformat.read(notebook, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        NotebookClient(content, timeout=3600, resources={"metadata": {"path": folder}}).execute()
        for cell in content.cells:
            shown = re.search(r"""context\.show\(\w+\.outputs\["(\w+)"\]\)$""", cell.source)
            if cell.cell_type != "code" or shown is None:
                continue
            cell.outputs = [each for each in cell.outputs if each.output_type == "display_data"]
            page = Path(folder) / f"{shown[1]}.html"
            only = nbformat.from_dict({**content, "cells": [cell]})
            page.write_text(nbconvert.HTMLExporter().from_notebook_node(only)[0], "utf-8")
            take(browser, page.as_uri(), out / f"notebook_{name}_{shown[1]}.png", height_px=870)


def take_serve_page(browser: str, version: Path, image: Path, path: Path) -> None:
    """Serve the model, and give its page the image as if it was pasted, by a script that its policy then allows."""
    from detloom.pipelines.predict.score_threshold import choose_min_score
    from detloom.pipelines.serving.page import Page, format_page
    from detloom.pipelines.serving.served_model import ServedModel
    from detloom.pipelines.serving.server import ModelServer

    model = ServedModel(version, "detector")
    page = format_page(model, choose_min_score(None, version))
    encoded = base64.b64encode(image.read_bytes()).decode()
    script = f"""const bytes = Uint8Array.from(atob("{encoded}"), (c) => c.charCodeAt(0));
        take(new File([bytes], "image", {{ type: "image/jpeg" }}));"""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    html = page.html.decode().replace("</body>", f"<script>{script}</script></body>").encode()
    page = Page(html, page.policy.replace("script-src", f"script-src 'sha256-{digest}'"))
    server = ModelServer("127.0.0.1", 0, model, page, MAX_REQUEST_BYTES)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        predict(server.url, encoded)  # the first call is slow, and a screenshot does not wait for it
        take(browser, f"{server.url}/", path, width_px=640, height_px=1030)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def predict(url: str, encoded: str) -> None:
    body = json.dumps({"signature_name": "serving_encoded", "instances": [{"b64": encoded}]}).encode()
    with urllib.request.urlopen(f"{url}/v1/models/detector:predict", body, timeout=300) as response:  # noqa: S310
        response.read()


if __name__ == "__main__":
    main()
