/* What a reader gets beside the plain pages where scripts may run: theme, sorting, filter, state in the
   address. Every page is complete without it. Data are set as text, never as markup. */
"use strict";

const perfdash = (window.perfdash = {
  base: new URL(".", document.currentScript.src),
  loads: new Map(), // address -> promise of a script

  /** An element with properties, and children: nodes, or text. */
  element(name, properties = {}, ...children) {
    const made = Object.assign(document.createElement(name), properties);
    made.append(...children);
    return made;
  },

  /** Loads a script once; rejected where it can't be had. */
  load(url) {
    const key = String(url);
    if (!this.loads.has(key)) {
      this.loads.set(key, new Promise((resolve, reject) => {
        const script = this.element("script", { src: key, onload: resolve });
        script.onerror = () => {
          this.loads.delete(key);
          script.remove();
          reject(new Error(`${key} could not be loaded`));
        };
        document.head.append(script);
      }));
    }
    return this.loads.get(key);
  },

  /** The JSON block of that id, or null where there is none. */
  block(id) {
    const found = document.getElementById(id);
    return found ? JSON.parse(found.textContent) : null;
  },

  /* What the address says after #, as key=value; an anchor to a place of the page is none. */
  state: {
    read() {
      const text = location.hash.slice(1);
      return new URLSearchParams(text.includes("=") ? text : "");
    },
    get(key) {
      return this.read().get(key) ?? "";
    },
    set(changes) {
      const all = this.read();
      for (const [key, value] of Object.entries(changes)) value ? all.set(key, value) : all.delete(key);
      const text = all.toString().replace(/%2C/g, ",");
      if (`#${text}` === location.hash) return;
      history.replaceState(null, "", text ? `#${text}` : location.pathname + location.search);
    },
  },
});

(() => {
  const { element, state } = perfdash;

  function theme() {
    const root = document.documentElement;
    const words = { "": "auto", light: "light", dark: "dark" };
    const next = { "": "dark", dark: "light", light: "" };
    const button = element("button", { type: "button", className: "small theme" });
    const remember = (value) => {
      try {
        if (value === undefined) return localStorage.getItem("perfdash-theme") ?? "";
        localStorage.setItem("perfdash-theme", value);
      } catch { /* a page without storage forgets it */ }
      return value ?? "";
    };
    const show = (value) => {
      if (value) root.dataset.theme = value;
      else delete root.dataset.theme;
      button.textContent = `Theme: ${words[value]}`;
    };
    let now = remember() in words ? remember() : "";
    show(now);
    button.addEventListener("click", () => show((now = remember(next[now]))));
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => show(now));
    document.querySelector("header.top")?.append(button);
  }

  const slug = (text) => text.trim().toLowerCase().replace(/[^a-z0-9]+/g, "-").replace(/^-|-$/g, "");

  /** A table's headers that sort, by key: [key, header, column]. */
  function headers(table) {
    let column = 0;
    return [...(table.tHead?.rows[table.tHead.rows.length - 1]?.cells ?? [])].map((cell) => {
      const place = column;
      column += cell.colSpan;
      return [cell.dataset.key || slug(cell.textContent), cell, place];
    });
  }

  /** A cell's value: a number, a text, or null for none; those without data-v by their text. */
  function valueOf(row, column) {
    const cell = row.cells[column];
    const text = (cell?.dataset.v ?? cell?.textContent ?? "").trim();
    if (text === "" || text.toLowerCase() === "nan") return null;
    return Number.isNaN(Number(text)) ? text : Number(text);
  }

  const order = new Intl.Collator("en", { numeric: true });

  function sort(table, column, down) {
    for (const body of table.tBodies) {
      const rows = [...body.rows].filter((row) => !row.classList.contains("total"));
      const keyed = rows.map((row) => [valueOf(row, column), row]);
      keyed.sort(([a], [b]) => {
        if (a === null || b === null) return (a === null) - (b === null);
        const words = (typeof a === "string") - (typeof b === "string"); // numbers before words
        const found = words || (typeof a === "number" ? a - b : order.compare(a, b));
        return down ? -found : found;
      });
      body.append(...keyed.map(([, row]) => row), ...[...body.rows].filter((row) => !rows.includes(row)));
    }
  }

  function sortable(table) {
    const all = headers(table);
    const mark = (key, down) => {
      for (const [name, cell] of all) {
        if (name === key) cell.setAttribute("aria-sort", down ? "descending" : "ascending");
        else cell.removeAttribute("aria-sort");
      }
    };
    const wanted = (text) => all.find(([key]) => key === text.replace(/-$/, ""));
    const tell = (text) => {
      const others = state.get("sort").split(",").filter((one) => one && !one.startsWith(`${table.id}.`));
      state.set({ sort: [...others, `${table.id}.${text}`].join(",") });
    };
    for (const [key, cell, column] of all) {
      if (!key) continue;
      const button = element("button", { type: "button", className: "sort" });
      button.append(...cell.childNodes);
      cell.append(button);
      button.addEventListener("click", () => {
        const now = cell.getAttribute("aria-sort");
        const down = now ? now === "ascending" : cell.classList.contains("num"); // numbers: the largest first
        sort(table, column, down);
        mark(key, down);
        tell(key + (down ? "-" : ""));
      });
    }
    const first = table.dataset.sort ?? "";
    if (wanted(first)) mark(first.replace(/-$/, ""), first.endsWith("-"));
    return () => {
      const told = state.get("sort").split(",").find((one) => one.startsWith(`${table.id}.`));
      const text = told?.slice(table.id.length + 1) ?? "";
      const found = wanted(text);
      if (!found) return;
      sort(table, found[2], text.endsWith("-"));
      mark(found[0], text.endsWith("-"));
    };
  }

  /** One box for all tables of the page: a row stays where it has every word. */
  function filter(tables) {
    const box = element("input", { type: "search", placeholder: "Filter rows, e.g. resnet fail" });
    box.setAttribute("aria-label", "Show rows that have all these words");
    const count = element("span", { className: "muted" });
    count.setAttribute("role", "status");
    const rows = tables.flatMap((table) => [...table.tBodies].flatMap((body) => [...body.rows]))
      .filter((row) => !row.classList.contains("total"));
    const texts = new Map(rows.map((row) => [row, row.textContent.toLowerCase()]));
    const apply = () => {
      const words = box.value.toLowerCase().split(/\s+/).filter(Boolean);
      let left = 0;
      for (const [row, text] of texts) {
        row.hidden = !words.every((word) => text.includes(word));
        left += !row.hidden;
      }
      count.textContent = words.length ? `${left} of ${rows.length}` : `${rows.length} rows`;
    };
    box.addEventListener("input", () => {
      apply();
      state.set({ q: box.value.trim() });
    });
    const place = tables[0].closest(".scroll") ?? tables[0];
    place.before(element("div", { className: "filter" }, box, count));
    return () => {
      box.value = state.get("q");
      apply();
    };
  }

  function copying() {
    for (const pre of document.querySelectorAll("pre.cmd")) {
      const text = pre.textContent.trim();
      const button = element("button", { type: "button", className: "small", textContent: "Copy" });
      button.addEventListener("click", async () => {
        try {
          await navigator.clipboard.writeText(text);
          button.textContent = "Copied";
        } catch { // refused, or a page without it: the reader copies what is selected
          getSelection().selectAllChildren(pre.querySelector("code") ?? pre);
          button.textContent = "Selected";
        }
        setTimeout(() => (button.textContent = "Copy"), 1500);
      });
      pre.append(button);
    }
  }

  theme();
  copying();
  const restores = [...document.querySelectorAll("table[data-sortable][id]")].map(sortable);
  const filtered = [...document.querySelectorAll("table[data-filter]")];
  if (filtered.length) restores.push(filter(filtered));
  const restore = () => restores.forEach((one) => one());
  restore();
  addEventListener("hashchange", restore);
  perfdash.sortable = (table) => sortable(table)();

  if (document.querySelector("figure.chart")) perfdash.load(new URL("charts.js", perfdash.base)).catch(console.error);
  if (document.getElementById("any-two")) perfdash.load(new URL("compare.js", perfdash.base)).catch(console.error);
})();
