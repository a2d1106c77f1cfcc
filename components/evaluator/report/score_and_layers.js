// The sliders recompute the table of precision, recall and F1, and hide the boxes over the images that their score does
// not reach. The check boxes select the layers of boxes. Inputs for the same setting follow each other.
"use strict";
{
  const models = Array.from(document.querySelectorAll("[data-counts]"), (element) => ({
    labels: element.dataset.labels.split(","),
    start: Number(element.dataset.start),
    step: Number(element.dataset.start),
    rows: element.dataset.counts.split(";").map(parseRow),
  }));
  const tableRows = Array.from(document.querySelector("#by-score tbody").rows); // keep their order when sorted
  const layers = { truth: true, true: true, false: true, missed: true };
  let shown = "0"; // index of the model whose boxes are drawn, or "both"

  // Counts above a threshold are sums from its step on.
  function parseRow(text) {
    const [truth, ...columns] = text.split("|");
    const sums = columns.map((column) => {
      const counts = column.split(",").map(Number);
      for (let step = counts.length - 2; step >= 0; step--) counts[step] += counts[step + 1];
      return counts;
    });
    return { truth: Number(truth), sums };
  }

  function ratesOf(model, index) {
    const { truth, sums } = model.rows[index];
    const [right, wrong] = sums.map((counts) => counts[model.step]);
    return [divide(right, right + wrong), divide(right, truth), divide(2 * right, right + wrong + truth)];
  }

  const divide = (numerator, denominator) => (denominator ? numerator / denominator : null);

  // Python rounds exact ties, which are odd multiples of 1/16, to the even digit; toFixed rounds them up.
  function format(value) {
    const low = Math.floor(value * 1000);
    const isTie = Math.abs((value * 16) % 2) === 1;
    return (isTie ? (low + Math.abs(low % 2)) / 1000 : value).toFixed(3);
  }

  function formatSigned(value) {
    const text = format(value);
    if (Number(text) === 0) return "0.000";
    return value > 0 ? `+${text}` : text;
  }

  function write(cell, value, formatValue) {
    cell.textContent = value === null ? "–" : formatValue(value);
    if (value === null) delete cell.dataset.value;
    else cell.dataset.value = value;
  }

  function updateTable() {
    for (const [index, row] of tableRows.entries()) {
      const rates = models.map((model) => ratesOf(model, index));
      for (const [column, value] of rates.flat().entries()) write(row.cells[column + 2], value, format);
      if (models.length > 1) {
        const [first, second] = rates.map((each) => each[2]);
        write(row.cells[8], first === null || second === null ? null : first - second, formatSigned);
      }
    }
  }

  // A detection is drawn if it reaches the threshold of its model or is the error of its image; an object is missed if no detection that reaches the
  // threshold is matched to it. The steps of ground truth are those of the matched detection of each model.
  function updateBoxes() {
    for (const box of document.querySelectorAll(".boxes > g")) {
      const steps = box.dataset.steps.split(" ").map(Number);
      const has = (name) => box.classList.contains(name);
      let isDrawn;
      if (has("truth")) {
        const model = shown === "both" ? 0 : Number(shown);
        const isMissed = !has("crowd") && steps[model] <= models[model].step;
        box.classList.toggle("missed", isMissed && layers.missed);
        isDrawn = layers.truth || (isMissed && layers.missed);
      } else {
        const model = has("baseline") ? 1 : 0;
        const isSelected = shown === "both" || shown === String(model);
        const isReached = has("subject") || steps[0] > models[model].step;
        isDrawn = isSelected && isReached && layers[has("false") ? "false" : "true"];
      }
      box.classList.toggle("off", !isDrawn);
    }
  }

  function update() {
    for (const [index, { labels, step, start }] of models.entries()) {
      for (const slider of document.querySelectorAll(`input[data-model="${index}"]`)) {
        slider.value = step;
        slider.setAttribute("aria-valuetext", labels[step]);
        slider.closest(".slider").querySelector("output").textContent = labels[step];
        slider.closest(".slider").querySelector("button").disabled = step === start;
      }
    }
    updateTable();
    updateBoxes();
  }

  for (const slider of document.querySelectorAll("input[data-model]")) {
    slider.addEventListener("input", () => {
      models[slider.dataset.model].step = Number(slider.value);
      update();
    });
    slider.closest(".slider").querySelector("button").addEventListener("click", () => {
      models[slider.dataset.model].step = models[slider.dataset.model].start;
      update();
      slider.focus();
    });
  }
  for (const box of document.querySelectorAll("input[data-layer]")) {
    box.addEventListener("change", () => {
      layers[box.dataset.layer] = box.checked;
      // Labels and masks are hidden by CSS, which shows those of detected objects only without the correct detections.
      document.documentElement.classList.toggle(`no-${box.dataset.layer}`, !box.checked);
      updateBoxes();
    });
  }
  for (const choice of document.querySelectorAll("input[name=shown]")) {
    choice.addEventListener("change", () => {
      shown = choice.value;
      updateBoxes();
    });
  }
  for (const each of document.querySelectorAll(".needs-script")) each.hidden = false;
  update();
}
