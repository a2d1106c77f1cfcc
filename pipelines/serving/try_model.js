// Sends an image to the server of this page by TensorFlow Serving's REST API and draws the detected objects.
// Untrusted values are inserted as text, never as markup.
"use strict";

const part = (id) => document.getElementById(id);
const settings = JSON.parse(part("app").dataset.settings);
const [BOXES, SCORES, CLASSES, NUM_DETECTIONS] = settings.outputs;
const [MASKS, KEYPOINTS, KEYPOINT_SCORES] = settings.shapeOutputs; // of models that have them
const MIN_MASK_SCORE = 0.5; // a pixel is object above it, as in the evaluation
const MIN_POINT_SCORE = 0.1; // points below are not drawn, as in all other drawings
let image = null;
let objects = []; // of the image, by descending score
let turn = 0; // number of the image; a response for an earlier image is not drawn

async function load(url) {
  const loaded = new Image();
  loaded.src = url;
  await loaded.decode();
  return loaded;
}

async function readUrl(file) {
  const reader = new FileReader();
  const isRead = new Promise((resolve) => reader.addEventListener("loadend", resolve));
  reader.readAsDataURL(file);
  await isRead;
  // JPEG and PNG files are sent unchanged, unless they may have an Exif orientation, which the model would ignore.
  const bytes = atob(reader.result.split(",")[1]);
  if (/^(\xff\xd8|\x89PNG)/.test(bytes) && !/Exif\0\0|eXIf/.test(bytes)) return reader.result;
  const upright = await load(reader.result);
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [upright.naturalWidth, upright.naturalHeight];
  canvas.getContext("2d").drawImage(upright, 0, 0);
  return canvas.toDataURL("image/jpeg", 0.95);
}

async function ask(url) {
  const body = JSON.stringify({ signature_name: settings.signature, instances: [{ b64: url.split(",")[1] }] });
  const response = await fetch(settings.url, { method: "POST", body });
  const answer = await response.json();
  if (!response.ok) throw new Error(answer.error);
  return answer.predictions[0];
}

function objectsOf(prediction) {
  const [down, across] = settings.hasPixelBoxes ? [1, 1] : [image.naturalHeight, image.naturalWidth];
  return [...Array(prediction[NUM_DETECTIONS]).keys()].map((i) => {
    const [ymin, xmin, ymax, xmax] = prediction[BOXES][i];
    const points = (prediction[KEYPOINTS]?.[i] ?? []).map(([y, x]) => [x * across, y * down]);
    return {
      ...(settings.classes[prediction[CLASSES][i]] ?? { name: `#${prediction[CLASSES][i]}`, rgb: [90, 102, 117] }),
      score: prediction[SCORES][i],
      box: [xmin * across, ymin * down, xmax * across, ymax * down],
      mask: prediction[MASKS]?.[i],
      points: points.filter((_, k) => prediction[KEYPOINT_SCORES][i][k] >= MIN_POINT_SCORE),
    };
  });
}

async function take(file) {
  const mine = (turn += 1);
  part("status").textContent = "Sending the image to the model ...";
  try {
    const url = await readUrl(file);
    const [loaded, prediction] = await Promise.all([load(url), ask(url)]);
    if (mine !== turn) return;
    image = loaded;
    objects = objectsOf(prediction);
    show();
  } catch (error) {
    if (mine === turn) part("status").textContent = `Failed: ${error.message}`;
  }
}

// Show the objects above the minimum score in the image and in the table, without a request.
function show() {
  const least = Number(part("least").value);
  part("least_shown").textContent = least.toFixed(3);
  if (image === null) return;
  const shown = objects.filter(({ score }) => score >= least);
  part("status").textContent = `${shown.length} of ${objects.length} objects have at least the minimum score.`;
  part("rows").replaceChildren();
  for (const { name, score, box } of shown) {
    const row = part("rows").insertRow();
    for (const text of [name, score.toFixed(3), ...box.map(Math.round)]) row.insertCell().textContent = text;
  }
  draw(shown);
}

function draw(shown) {
  const canvas = part("canvas");
  const scale = Math.max(1, 640 / image.naturalWidth); // labels on a small image would not be legible
  [canvas.width, canvas.height] = [scale * image.naturalWidth, scale * image.naturalHeight];
  const context = canvas.getContext("2d");
  context.scale(scale, scale);
  context.drawImage(image, 0, 0);
  const unit = Math.max(image.naturalWidth, image.naturalHeight) / 500; // one size on the screen for all images
  [context.lineWidth, context.font] = [2 * unit, `${12 * unit}px system-ui, sans-serif`];
  for (const { name, rgb, score, box, mask, points } of [...shown].reverse()) { // the highest score on top
    const [left, top, right, bottom] = box;
    context.fillStyle = context.strokeStyle = `rgb(${rgb})`;
    if (mask) context.drawImage(canvasOfMask(mask, rgb), left, top, right - left, bottom - top);
    context.strokeRect(left, top, right - left, bottom - top);
    for (const [x, y] of points) context.fillRect(x - 2 * unit, y - 2 * unit, 4 * unit, 4 * unit);
    const text = `${name} ${score.toFixed(2)}`;
    context.fillStyle = "#000";
    context.fillRect(left, top, context.measureText(text).width + 4 * unit, 16 * unit);
    context.fillStyle = "#fff";
    context.fillText(text, left + 2 * unit, top + 12 * unit);
  }
}

function canvasOfMask(cells, rgb) {
  const pixels = cells.flat().flatMap((score) => [...rgb, score > MIN_MASK_SCORE ? 115 : 0]);
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [cells[0].length, cells.length];
  canvas.getContext("2d").putImageData(new ImageData(new Uint8ClampedArray(pixels), canvas.width), 0, 0);
  return canvas;
}

part("file").addEventListener("change", (event) => take(event.target.files[0]));
part("least").addEventListener("input", show);
document.addEventListener("dragover", (event) => event.preventDefault());
document.addEventListener("drop", (event) => {
  event.preventDefault();
  if (event.dataTransfer.files.length) take(event.dataTransfer.files[0]);
});
show();
