"use strict";
for (const kernel of document.querySelectorAll(".kernel")) {
  const detail = kernel.querySelector(".detail");
  const choose = (bucket, text) => {
    detail.textContent = text;
    for (const one of kernel.querySelectorAll(".chosen")) one.classList.remove("chosen");
    for (const one of kernel.querySelectorAll(`[data-bucket="${bucket}"]`)) one.classList.add("chosen");
  };
  for (const cell of kernel.querySelectorAll(".cell"))
    for (const event of ["pointerenter", "focus", "click"]) cell.addEventListener(event, () => choose(cell.dataset.bucket, cell.dataset.detail));

  const table = kernel.querySelector("table.winners");
  const headings = [...table.querySelectorAll("th")];
  headings.forEach((heading, column) => heading.addEventListener("click", () => {
    const down = heading.getAttribute("aria-sort") === "ascending";
    for (const one of headings) one.removeAttribute("aria-sort");
    heading.setAttribute("aria-sort", down ? "descending" : "ascending");
    const key = (row) => row.cells[column].dataset.key ?? row.cells[column].textContent;
    const order = (a, b) => key(a).localeCompare(key(b), "en");
    const numbers = (a, b) => Number(key(a)) - Number(key(b));
    const rows = [...table.tBodies[0].rows];
    rows.sort(rows.every((row) => row.cells[column].dataset.key !== undefined) ? numbers : order);
    if (down) rows.reverse();
    table.tBodies[0].append(...rows);
  }));
}
