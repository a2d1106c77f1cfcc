// A click or Enter on a .zoomable picture enlarges it in a dialog. The wheel, two fingers, + and - zoom; dragging and the
// arrow keys move it; 0 fits it into the window; Escape closes. Elements with data-zoom-tools are in the dialog meanwhile.
"use strict";
{
  const MAX_ZOOM = 20;
  const MOVE_PX = 60;
  const dialog = make("dialog", "zoom");
  const bar = make("div", "zoom-bar");
  const title = make("strong", "");
  const stage = make("div", "zoom-stage");
  const tools = document.querySelector("[data-zoom-tools]");
  const home = tools?.parentElement;
  const fingers = new Map(); // pointers on the stage by id
  let picture = null;
  let view = { zoom: 1, left: 0, top: 0, width: 0, height: 0 }; // size at zoom 1

  function make(tag, className) {
    const element = document.createElement(tag);
    element.className = className;
    return element;
  }

  function addButton(text, label, act) {
    const button = make("button", "");
    button.type = "button";
    button.textContent = text;
    button.setAttribute("aria-label", label);
    button.addEventListener("click", act);
    bar.append(button);
  }

  function place() {
    picture.style.width = `${view.width * view.zoom}px`;
    picture.style.height = `${view.height * view.zoom}px`;
    picture.style.left = `${view.left}px`;
    picture.style.top = `${view.top}px`;
    const { naturalWidth } = picture.querySelector("img");
    picture.style.setProperty("--zoom", Math.max((view.zoom * view.width) / (naturalWidth || 1), 1)); // for texts
  }

  function fit() {
    const { naturalWidth, naturalHeight } = picture.querySelector("img");
    const scale = Math.min(stage.clientWidth / (naturalWidth || 1), stage.clientHeight / (naturalHeight || 1));
    const [width, height] = [naturalWidth * scale, naturalHeight * scale];
    view = { zoom: 1, left: (stage.clientWidth - width) / 2, top: (stage.clientHeight - height) / 2, width, height };
    place();
  }

  // Zoom so that the point of the stage stays where it is.
  function zoomBy(factor, x = stage.clientWidth / 2, y = stage.clientHeight / 2) {
    const zoom = Math.min(Math.max(view.zoom * factor, 1), MAX_ZOOM);
    const change = zoom / view.zoom;
    view = { ...view, zoom, left: x - (x - view.left) * change, top: y - (y - view.top) * change };
    if (zoom === 1) fit();
    else place();
  }

  function moveBy(x, y) {
    view.left += x;
    view.top += y;
    place();
  }

  function open(source) {
    picture = source.cloneNode(true);
    for (const name of ["tabindex", "role", "aria-label"]) picture.removeAttribute(name);
    picture.classList.remove("zoomable");
    title.textContent = source.dataset.title ?? "";
    stage.replaceChildren(picture);
    if (tools) dialog.append(tools);
    dialog.showModal();
    stage.focus();
    picture.querySelector("img").decode().then(fit, fit);
  }

  dialog.addEventListener("close", () => {
    if (tools) home.append(tools);
    stage.replaceChildren();
    fingers.clear();
    picture = null;
  });
  dialog.addEventListener("keydown", (event) => {
    if (event.target.matches("input") && event.key.startsWith("Arrow")) return; // moves a slider
    const actions = {
      "+": () => zoomBy(1.25),
      "=": () => zoomBy(1.25),
      "-": () => zoomBy(0.8),
      0: fit,
      ArrowLeft: () => moveBy(MOVE_PX, 0),
      ArrowRight: () => moveBy(-MOVE_PX, 0),
      ArrowUp: () => moveBy(0, MOVE_PX),
      ArrowDown: () => moveBy(0, -MOVE_PX),
    };
    if (!(event.key in actions) || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    actions[event.key]();
  });
  stage.addEventListener("wheel", (event) => {
    event.preventDefault();
    const { left, top } = stage.getBoundingClientRect();
    zoomBy(event.deltaY < 0 ? 1.15 : 1 / 1.15, event.clientX - left, event.clientY - top);
  }, { passive: false });
  stage.addEventListener("pointerdown", (event) => {
    stage.setPointerCapture(event.pointerId);
    fingers.set(event.pointerId, event);
  });
  stage.addEventListener("pointermove", (event) => {
    const before = fingers.get(event.pointerId);
    if (!before || !picture) return;
    const other = Array.from(fingers.values()).find((each) => each.pointerId !== event.pointerId);
    fingers.set(event.pointerId, event);
    if (!other) {
      moveBy(event.clientX - before.clientX, event.clientY - before.clientY);
      return;
    }
    const distanceTo = (each) => Math.hypot(each.clientX - other.clientX, each.clientY - other.clientY) || 1;
    const { left, top } = stage.getBoundingClientRect();
    const middle = [(event.clientX + other.clientX) / 2 - left, (event.clientY + other.clientY) / 2 - top];
    zoomBy(distanceTo(event) / distanceTo(before), ...middle);
  });
  for (const name of ["pointerup", "pointercancel"]) {
    stage.addEventListener(name, (event) => fingers.delete(event.pointerId));
  }
  window.addEventListener("resize", () => picture && fit());

  bar.append(title);
  addButton("−", "zoom out", () => zoomBy(0.8));
  addButton("+", "zoom in", () => zoomBy(1.25));
  addButton("Fit", "fit the image into the window", fit);
  addButton("Close", "close the enlarged image", () => dialog.close());
  stage.tabIndex = 0;
  stage.setAttribute("aria-label", "image; plus and minus zoom, arrow keys move it");
  dialog.append(bar, stage);
  document.body.append(dialog);
  for (const each of document.querySelectorAll(".zoomable")) {
    each.tabIndex = 0;
    each.setAttribute("role", "button");
    each.setAttribute("aria-label", `enlarge ${each.dataset.title ?? "the image"}`);
    each.addEventListener("click", () => open(each));
    each.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" && event.key !== " ") return;
      event.preventDefault();
      open(each);
    });
  }
}
