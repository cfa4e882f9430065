"use strict";
// Long tables of results can be sorted by a click on a heading, and filtered by words; without this script they are tables.
const number = text => {
  const [, power, plain] = /10\^(\d+)|([-−]?\d*\.?\d+(?:e[-+]?\d+)?)/.exec(text.split("[")[0]) || [];
  return parseFloat(power || (plain || "").replace("−", "-"));
};
for (const table of document.querySelectorAll(".md-typeset table:not([class])")) {
  const body = table.tBodies[0], rows = [...body.rows], heads = [...table.tHead.rows[0].cells];
  if (rows.length < 8) continue;
  heads.forEach((head, place) => {
    const text = row => row.cells[place].textContent;
    const counts = rows.filter(row => !isNaN(number(text(row)))).length > rows.length / 2 && !/[a-z]{3}/i.test(text(rows[0]));
    head.classList.add("sorts");
    head.addEventListener("click", () => {
      const sign = head.getAttribute("aria-sort") === "ascending" ? -1 : 1;
      heads.forEach(other => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", sign > 0 ? "ascending" : "descending");
      const key = row => counts ? number(text(row)) : text(row);
      const before = ([a], [b]) => counts ? isNaN(a) - isNaN(b) || sign * (a - b) : sign * a.localeCompare(b, "en", {numeric: true});
      body.append(...rows.map(row => [key(row), row]).sort(before).map(([, row]) => row));
    });
  });
  const words = document.createElement("input");
  words.type = "search";
  words.placeholder = `Filter ${rows.length} rows, for example by a defense`;
  words.className = "filters";
  words.addEventListener("input", () => {
    const wanted = words.value.toLowerCase().split(/\s+/).filter(Boolean);
    for (const row of rows) row.hidden = !wanted.every(word => row.textContent.toLowerCase().includes(word));
  });
  (table.closest(".md-typeset__scrollwrap") || table).before(words);
}
