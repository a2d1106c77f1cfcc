// Sends an image to the server of this page by TensorFlow Serving's REST API and draws the detected objects.
// Untrusted values are inserted as text or attributes, never as markup.
"use strict";

const part = (id) => document.getElementById(id);
const settings = JSON.parse(part("app").dataset.settings);
const [BOXES, SCORES, CLASSES, NUM_DETECTIONS] = settings.outputs;
const [MASKS, KEYPOINTS, KEYPOINT_SCORES] = settings.shapeOutputs; // of models that have them
const MIN_MASK_SCORE = 0.5; // a pixel is object above it, as in the evaluation
const MIN_POINT_SCORE = 0.1; // points below are not drawn, as in all other drawings
const MASK_OPACITY = 0.45;
const SVG = "http://www.w3.org/2000/svg";
const MAX_ROWS = 300;
let found = []; // objects of the current image, by descending score
let turn = 0; // number of the current image; a response for an earlier image is not drawn
let waiting = new AbortController();
let isAnswered = false;
let statusText = part("status").textContent; // the status text without the number of objects

// Return the Exif orientation of a JPEG, 1 to 8; 1 if there is none. CIPA DC-008 section 4.6.
function orientationOf(buffer) {
  const view = new DataView(buffer);
  if (view.byteLength < 4 || view.getUint16(0) !== 0xffd8) return 1;
  for (let at = 2; at + 10 <= view.byteLength && view.getUint8(at) === 0xff; at += 2 + view.getUint16(at + 2)) {
    const marker = view.getUint8(at + 1);
    if (marker === 0xda) return 1;
    if (marker === 0xe1 && view.getUint32(at + 4) === 0x45786966) return tiffOrientation(view, at + 10);
  }
  return 1;
}

function tiffOrientation(view, start) {
  if (start + 8 > view.byteLength) return 1;
  const little = view.getUint16(start) === 0x4949;
  const first = start + view.getUint32(start + 4, little);
  if (first + 2 > view.byteLength) return 1;
  const last = Math.min(first + 2 + 12 * view.getUint16(first, little), view.byteLength - 11);
  for (let entry = first + 2; entry < last; entry += 12) {
    if (view.getUint16(entry, little) === 0x0112) return view.getUint16(entry + 8, little);
  }
  return 1;
}

function hasExif(buffer) { // the eXIf chunk of a PNG may contain an orientation
  const view = new DataView(buffer);
  for (let at = 8; at + 12 <= view.byteLength; at += 12 + view.getUint32(at)) {
    if (view.getUint32(at + 4) === 0x65584966) return true;
  }
  return false;
}

function isSentAsItIs(buffer) {
  const [a, b, c] = new Uint8Array(buffer.slice(0, 3));
  const isPng = a === 0x89 && b === 0x50 && c === 0x4e;
  return (isPng && !hasExif(buffer)) || (a === 0xff && b === 0xd8 && [0, 1].includes(orientationOf(buffer)));
}

function readDataUrl(blob) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(new Error("the file cannot be read."));
    reader.readAsDataURL(blob);
  });
}

async function load(url) {
  const image = new Image();
  image.src = url;
  try {
    await image.decode();
  } catch {
    throw new Error("the browser cannot show this image.");
  }
  return image;
}

// Convert to an upright JPEG: the model ignores the Exif orientation and accepts only JPEG and PNG.
function redraw(image) {
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [image.naturalWidth, image.naturalHeight];
  canvas.getContext("2d").drawImage(image, 0, 0);
  return canvas.toDataURL("image/jpeg", 0.95);
}

async function ask(url, signal) {
  const b64 = url.slice(url.indexOf(",") + 1);
  const body = JSON.stringify({ signature_name: settings.signature, instances: [{ b64 }] });
  if (body.length > settings.maxRequestBytes) {
    const megabytes = (bytes) => (bytes / 2 ** 20).toFixed(2);
    throw new Error(`the request has ${megabytes(body.length)} MB, allowed: ${megabytes(settings.maxRequestBytes)} MB.`);
  }
  const headers = { "Content-Type": "application/json" };
  const response = await fetch(settings.url, { method: "POST", headers, body, signal });
  const answer = await response.json();
  if (!response.ok) throw new Error(answer.error);
  const timing = /dur=([0-9.]+)/.exec(response.headers.get("Server-Timing") ?? "");
  return { prediction: answer.predictions[0], modelSeconds: timing ? Number(timing[1]) / 1000 : NaN };
}

function objectsOf(prediction, image) {
  const objects = [];
  const [height, width] = [image.naturalHeight, image.naturalWidth];
  const units = settings.hasPixelBoxes ? [height, width, height, width] : [1, 1, 1, 1];
  for (let i = 0; i < prediction[NUM_DETECTIONS]; i += 1) {
    const [ymin, xmin, ymax, xmax] = prediction[BOXES][i].map((side, k) => Math.min(Math.max(side / units[k], 0), 1));
    const id = Math.round(prediction[CLASSES][i]);
    const { name, rgb } = settings.classes[id] ?? { name: `#${id}`, rgb: [90, 102, 117] };
    const box = [xmin * width, ymin * height, xmax * width, ymax * height];
    const shapes = { mask: prediction[MASKS]?.[i], points: pointsOf(prediction, i, units) };
    objects.push({ name, rgb, score: prediction[SCORES][i], rel: [xmin, ymin, xmax, ymax], box, ...shapes });
  }
  return objects;
}

// Return the keypoints of an object as [x, y] relative to the image, without those that the model is not sure of.
function pointsOf(prediction, i, units) {
  const points = (prediction[KEYPOINTS]?.[i] ?? []).map(([y, x]) => [x / units[1], y / units[0]]);
  return points.filter((_, k) => !(prediction[KEYPOINT_SCORES]?.[i][k] < MIN_POINT_SCORE));
}

// Draw a mask of cells over a box of this size: the corner cells are at the corners of the box, between them bilinear.
function maskUrl(cells, [red, green, blue], width, height) {
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [Math.max(Math.round(width), 1), Math.max(Math.round(height), 1)];
  const context = canvas.getContext("2d");
  const pixels = context.createImageData(canvas.width, canvas.height);
  const position = (i, size, count) => {
    const at = size > 1 ? (i / (size - 1)) * (count - 1) : (count - 1) / 2;
    return [Math.floor(at), Math.ceil(at), at - Math.floor(at)];
  };
  for (let y = 0; y < canvas.height; y += 1) {
    const [top, bottom, down] = position(y, canvas.height, cells.length);
    for (let x = 0; x < canvas.width; x += 1) {
      const [left, right, across] = position(x, canvas.width, cells[0].length);
      const upper = cells[top][left] + (cells[top][right] - cells[top][left]) * across;
      const lower = cells[bottom][left] + (cells[bottom][right] - cells[bottom][left]) * across;
      const isObject = upper + (lower - upper) * down > MIN_MASK_SCORE;
      pixels.data.set([red, green, blue, isObject ? 255 * MASK_OPACITY : 0], 4 * (y * canvas.width + x));
    }
  }
  context.putImageData(pixels, 0, 0);
  return canvas.toDataURL();
}

async function take(file) {
  const mine = (turn += 1);
  waiting.abort();
  waiting = new AbortController();
  [found, isAnswered] = [[], false];
  show({ error: "", status: `Sending ${file.name || "the image"} to the model ...` });
  try {
    let url = await readDataUrl(file);
    let image = await load(url);
    const isChanged = !isSentAsItIs(await file.arrayBuffer());
    if (isChanged) image = await load((url = redraw(image)));
    if (mine !== turn) return;
    part("image").src = url;
    part("stage").hidden = false;
    part("invite").hidden = true;
    part("drop").classList.add("full");
    const started = performance.now();
    const { prediction, modelSeconds } = await ask(url, waiting.signal);
    if (mine !== turn) return;
    const seconds = (performance.now() - started) / 1000;
    [found, isAnswered] = [objectsOf(prediction, image), true];
    statusText = `${image.naturalWidth} × ${image.naturalHeight} pixels, ${seconds.toFixed(2)} s, of which the model took ${modelSeconds.toFixed(2)} s.`;
    if (isChanged) statusText += " The image was rotated or converted to JPEG before it was sent.";
    show({ error: "" });
  } catch (error) {
    if (mine === turn) show({ error: `Failed: ${error.message}`, status: "" });
  }
}

// Show the objects above the minimum score in the image and in the table, without a request.
function show({ error, status }) {
  const least = Number(part("least").value);
  const shown = found.filter(({ score }) => score >= least);
  part("least_shown").textContent = least.toFixed(3);
  if (error !== undefined) {
    part("error").textContent = error;
    part("error").hidden = error === "";
  }
  if (status !== undefined) statusText = status;
  const counted = `${shown.length} of ${found.length} objects have a score of at least ${least.toFixed(3)}. ${statusText}`;
  part("status").textContent = isAnswered ? counted : statusText;
  part("found").hidden = shown.length === 0;
  part("rows").replaceChildren(...shown.slice(0, MAX_ROWS).map(rowOf));
  draw(shown);
}

function rowOf(object, index) {
  const row = document.createElement("tr");
  const chip = document.createElement("span");
  chip.className = "chip";
  chip.style.background = `rgb(${object.rgb})`;
  const name = document.createElement("td");
  name.className = "name";
  name.append(chip, object.name);
  const numbers = [object.score.toFixed(3), ...object.box.map((side) => side.toFixed(0))].map((text) => {
    const cell = document.createElement("td");
    cell.className = "n";
    cell.textContent = text;
    return cell;
  });
  row.append(name, ...numbers);
  row.addEventListener("mouseenter", () => light(index, true));
  row.addEventListener("mouseleave", () => light(index, false));
  return row;
}

function light(index, isLit) {
  part("boxes").querySelector(`[data-index="${index}"]`)?.classList.toggle("lit", isLit);
}

function svg(kind, attributes) {
  const element = document.createElementNS(SVG, kind);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return element;
}

// Draw in screen units, so that lines and text keep their size. The box with the highest score is drawn last, on top.
function draw(objects) {
  const overlay = part("boxes");
  const { width, height } = part("image").getBoundingClientRect();
  overlay.setAttribute("viewBox", `0 0 ${width || 1} ${height || 1}`);
  const labels = svg("g", {}); // after all boxes, so that no box covers a label
  overlay.replaceChildren(labels);
  for (const [index, object] of [...objects.entries()].reverse()) {
    const [left, top, right, bottom] = object.rel.map((side, i) => side * (i % 2 ? height : width));
    const [red, green, blue] = object.rgb;
    const size = { x: left, y: top, width: Math.max(right - left, 0), height: Math.max(bottom - top, 0) };
    if (object.mask && size.width > 0 && size.height > 0) {
      const href = maskUrl(object.mask, object.rgb, size.width, size.height);
      labels.before(svg("image", { ...size, href, preserveAspectRatio: "none" }));
    }
    labels.before(svg("rect", { ...size, class: "box", stroke: `rgb(${object.rgb})`, "data-index": index }));
    for (const [x, y] of object.points) {
      const place = { cx: x * width, cy: y * height, r: 3 };
      labels.before(svg("circle", { ...place, fill: `rgb(${object.rgb})`, stroke: "#fff" }));
    }
    // Black or white text by the ITU-R BT.601 luma, as in all other drawings.
    const ink = 0.299 * red + 0.587 * green + 0.114 * blue > 140 ? "#000" : "#fff";
    const label = svg("text", { fill: ink });
    label.textContent = `${object.name} ${object.score.toFixed(2)}`;
    labels.append(label);
    const plate = { width: label.getComputedTextLength() + 6, height: 16 };
    const x = Math.max(0, Math.min(left, width - plate.width));
    const y = top >= plate.height ? top - plate.height : top;
    label.setAttribute("x", x + 3);
    label.setAttribute("y", y + 12);
    label.before(svg("rect", { x, y, ...plate, fill: `rgb(${object.rgb})` }));
  }
}

function takeFirst(files) {
  const file = [...(files ?? [])].find(({ type }) => type.startsWith("image/")) ?? files?.[0];
  if (file) take(file);
}

part("file").addEventListener("change", (event) => {
  takeFirst(event.target.files);
  event.target.value = ""; // the same file can be chosen again
});
part("least").addEventListener("input", () => show({}));
document.addEventListener("paste", (event) => takeFirst(event.clipboardData?.files));
// On the whole page, because the browser would open an image that is dropped outside of the frame.
document.addEventListener("dragover", (event) => {
  event.preventDefault();
  part("drop").classList.add("over");
});
document.addEventListener("dragleave", () => part("drop").classList.remove("over"));
document.addEventListener("drop", (event) => {
  event.preventDefault();
  part("drop").classList.remove("over");
  takeFirst(event.dataTransfer?.files);
});
new ResizeObserver(() => show({})).observe(part("image"));
show({});
