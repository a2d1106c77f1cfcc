// The selects above the grid hide the images that lack a selected value. A figure has the numbers of its options in
// data-class, data-split and so on, separated by spaces.
"use strict";
{
  const figures = Array.from(document.querySelectorAll("#grid figure"));
  const selects = Array.from(document.querySelectorAll("#filters select"));
  const status = document.querySelector("#filters output");
  const reset = document.querySelector("#filters button");

  function isShown(figure) {
    return selects.every(({ name, value }) => value === "" || figure.getAttribute(`data-${name}`).split(" ").includes(value));
  }

  function update() {
    for (const figure of figures) figure.hidden = !isShown(figure);
    status.textContent = `${figures.filter((figure) => !figure.hidden).length} of ${figures.length} images`;
    reset.disabled = selects.every(({ value }) => value === "");
  }

  for (const select of selects) select.addEventListener("change", update);
  reset.addEventListener("click", () => {
    for (const select of selects) select.value = "";
    update();
    selects[0].focus();
  });
  document.querySelector("#filters").hidden = false;
  update();
}
