// A click or Enter on a header of table.sortable sorts the rows; a second one reverses the order.
// Rows are compared by the cell's data-value or else its text; empty cells and dashes stay last.
"use strict";

function keyOf(row, column) {
  const cell = row.cells[column];
  return cell.dataset.value ?? cell.textContent.trim();
}

function compareKeys(keys) {
  return keys.every((key) => !Number.isNaN(Number(key)))
    ? (a, b) => Number(a) - Number(b)
    : (a, b) => a.localeCompare(b, "en", { numeric: true });
}

function sortBy(header) {
  const direction = header.getAttribute("aria-sort") === "ascending" ? -1 : 1;
  const body = header.closest("table").tBodies[0];
  const keyed = Array.from(body.rows, (row) => ({ row, key: keyOf(row, header.cellIndex) }));
  const given = keyed.filter(({ key }) => key !== "" && key !== "–");
  const missing = keyed.filter(({ key }) => key === "" || key === "–");
  const compare = compareKeys(given.map(({ key }) => key));
  given.sort((a, b) => direction * compare(a.key, b.key));
  for (const { row } of [...given, ...missing]) body.append(row);
  for (const each of header.parentElement.cells) each.removeAttribute("aria-sort");
  header.setAttribute("aria-sort", direction === 1 ? "ascending" : "descending");
}

for (const header of document.querySelectorAll("table.sortable thead th")) {
  header.tabIndex = 0;
  header.addEventListener("click", () => sortBy(header));
  header.addEventListener("keydown", (event) => {
    if (event.key === "Enter") sortBy(header);
  });
}
