// Tables that are sorted by a click on a head and filtered by words; a link into a closed part opens it.
{
  const value = (row, column) => {
    const cell = row.cells[column], known = cell.dataset.v;
    return known === undefined ? cell.textContent.trim().toLowerCase() : +known;
  };

  function sortable(table) {
    const heads = [...table.tHead.rows[0].cells], body = table.tBodies[0];
    heads.forEach((head, column) => {
      if (!head.textContent.trim()) return;
      const button = document.createElement("button");
      button.type = "button";
      button.append(...head.childNodes);
      head.append(button);
      button.addEventListener("click", () => {
        const numbers = body.rows[0]?.cells[column].dataset.v !== undefined;
        const before = head.getAttribute("aria-sort");
        const up = before ? before === "descending" : !numbers;
        for (const other of heads) other.removeAttribute("aria-sort");
        head.setAttribute("aria-sort", up ? "ascending" : "descending");
        const compare = (a, b) => (numbers ? a - b : a < b ? -1 : +(a > b));
        body.append(...[...body.rows].sort((a, b) => (up ? 1 : -1) * compare(value(a, column), value(b, column))));
      });
    });
  }

  function filter(input) {
    const tables = document.querySelectorAll(`table[data-filtered="${input.dataset.filter}"]`);
    input.addEventListener("input", () => {
      const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
      for (const table of tables) {
        const about = table.closest("details"), title = about?.querySelector("summary b").textContent ?? "";
        let left = 0;
        for (const row of table.tBodies[0].rows) {
          const text = `${title} ${row.textContent}`.toLowerCase();
          row.hidden = !words.every((word) => text.includes(word));
          left += !row.hidden;
        }
        if (about) about.hidden = !left;
      }
    });
  }

  const reveal = () => {
    const part = location.hash.length > 1 && document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (part instanceof HTMLDetailsElement) { part.open = true; part.scrollIntoView(); }
  };

  document.querySelectorAll("table.sortable").forEach(sortable);
  document.querySelectorAll("input[data-filter]").forEach(filter);
  addEventListener("hashchange", reveal);
  reveal();
}
