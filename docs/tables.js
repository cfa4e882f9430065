"use strict";
// Long tables of results can be sorted by a click on a heading, and filtered by words and by adversary; without this script they are tables.
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
  const words = document.createElement("input"), against = document.createElement("select");
  words.type = "search";
  against.ariaLabel = "Adversary";
  words.placeholder = `Filter ${rows.length} rows, for example by a defense`;
  // Adversaries stand in the cells of a column, or each has one of its own, which is left empty (–) where it was not tried.
  const marked = heads.filter(head => "adversary" in head.dataset), column = marked.find(head => head.textContent === "adversary");
  const names = row => column ? row.cells[column.cellIndex].textContent.split(", ") :
    marked.filter(head => row.cells[head.cellIndex].textContent !== "–").map(head => head.textContent);
  const all = column ? [...new Set(rows.flatMap(names))] : marked.map(head => head.textContent);
  against.append(new Option("any adversary", ""), ...all.map(name => new Option(name)));
  const filter = () => {
    const wanted = words.value.toLowerCase().split(/\s+/).filter(Boolean), chosen = against.value;
    for (const row of rows)
      row.hidden = !wanted.every(word => row.textContent.toLowerCase().includes(word)) || chosen !== "" && !names(row).includes(chosen);
    if (!column) for (const head of marked) for (const row of table.rows)
      row.cells[head.cellIndex].hidden = chosen !== "" && head.textContent !== chosen;
  };
  const controls = all.length > 1 ? [words, against] : [words];
  for (const control of controls) {
    control.className = "filters";
    control.addEventListener("input", filter);
  }
  (table.closest(".md-typeset__scrollwrap") || table).before(...controls);
}
