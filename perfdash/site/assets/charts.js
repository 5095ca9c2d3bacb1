/* Hover and arrow keys on the drawn charts. site.js loads it where a page has charts; without it they stay as
   they are. */
"use strict";

(() => {
  const { element } = perfdash;
  const SVG = "http://www.w3.org/2000/svg";
  const data = perfdash.block("chart-data");
  const round = (value) => String(Number(value.toPrecision(5)));
  const worded = (value, unit) => `${round(value)}${unit === "x" || unit === "%" ? "" : " "}${unit}`.trim();

  /** What is known of a night in a chart, line by line. */
  function told(chart, k) {
    const lines = [data.names[k]];
    const torch = data.torches[data.torch[k]];
    if (torch) lines.push(`torch ${torch}`);
    const value = chart.v[k];
    if (value === null) lines.push(chart.failed.includes(k) ? "failed" : "no number");
    else {
      const low = chart.low?.[k] ?? null, high = chart.high?.[k] ?? null;
      const about = k < chart.weekly ? "lowest and highest" : "95 %";
      const interval = low !== null && high !== null ? ` (${round(low)} to ${round(high)}, ${about})` : "";
      lines.push(worded(value, chart.unit) + interval);
    }
    for (const [at, text] of chart.marks) if (at === data.t[k]) lines.push(text);
    return lines;
  }

  /** The place of the time next to one. */
  function nearest(time) {
    let low = 0, high = data.t.length - 1;
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      data.t[middle] < time ? (low = middle) : (high = middle);
    }
    return time - data.t[low] < data.t[high] - time ? low : high;
  }

  /** A box of text over a figure, beside a place of its SVG. */
  function tip(figure, svg) {
    const box = element("div", { className: "tip", hidden: true });
    box.setAttribute("role", "status");
    figure.append(box);
    const line = document.createElementNS(SVG, "path");
    line.setAttribute("class", "cursor");
    return {
      show(x, y, d, lines) {
        line.setAttribute("d", d);
        svg.append(line);
        box.replaceChildren(element("b", { textContent: lines[0] }), `\n${lines.slice(1).join("\n")}`);
        box.hidden = false;
        box.style.left = "0";
        const at = new DOMPoint(x, y).matrixTransform(svg.getScreenCTM());
        const frame = figure.getBoundingClientRect();
        const beside = at.x - frame.left;
        const left = beside + (beside > frame.width / 2 ? -box.offsetWidth - 10 : 10);
        box.style.left = `${Math.max(0, Math.min(left, frame.width - box.offsetWidth)) + figure.scrollLeft}px`;
        box.style.top = `${Math.max(0, Math.min(at.y - frame.top, frame.height - box.offsetHeight))}px`;
      },
      hide() {
        box.hidden = true;
        line.remove();
      },
    };
  }

  const inside = (svg, event) =>
    new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());

  function hover(figure, svg, chart) {
    const [left, right, top, bottom, first, last, split = last, share = 1] = svg.dataset.plot.split(" ").map(Number);
    const width = right - left;
    const place = (time) => // weeks before the split have less room than the nights after it
      left + width * (time < split || share === 1
        ? (share * (time - first)) / (split - first)
        : 1 - ((1 - share) * (last - time)) / (last - split));
    const timeAt = (x) => {
      const part = (x - left) / width;
      return part < share ? first + (part / share) * (split - first) : last - ((1 - part) / (1 - share || 1)) * (last - split);
    };
    const box = tip(figure, svg);
    let now = -1;
    const show = (k) => {
      now = Math.max(0, Math.min(k, data.t.length - 1));
      const x = place(data.t[now]);
      box.show(x, top, `M${x} ${top}V${bottom}`, told(chart, now));
    };
    svg.querySelector("title")?.remove(); // its place is taken; the name stays for readers of screens
    svg.removeAttribute("aria-labelledby");
    const said = svg.querySelector("desc")?.textContent ?? "";
    svg.setAttribute("aria-label", `${chart.title}: ${said} Arrow keys go from night to night.`);
    svg.tabIndex = 0;
    const at = (event) => {
      const { x } = inside(svg, event);
      if (x < left - 5 || x > right + 5) box.hide();
      else show(nearest(timeAt(x)));
    };
    svg.addEventListener("pointermove", at);
    svg.addEventListener("pointerdown", at);
    svg.addEventListener("pointerleave", box.hide);
    svg.addEventListener("blur", box.hide);
    svg.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: -1, ArrowRight: 1, Home: -data.t.length, End: data.t.length }[event.key];
      if (event.key === "Escape") box.hide();
      if (!step) return;
      event.preventDefault();
      show(now < 0 ? data.t.length - 1 : now + step);
    });
  }

  function hoverMap(figure, svg) {
    const [left, top, width, height, columns, rows] = svg.dataset.cells.split(" ").map(Number);
    const nights = svg.dataset.nights.split(",");
    const ratios = svg.dataset.ratios.split(";").map((row) => row.split(","));
    const spreads = svg.dataset.spreads.split(";").map(Number);
    const names = [...svg.querySelectorAll(".rows text title")].map((title) => title.textContent);
    const box = tip(figure, svg);
    svg.addEventListener("pointermove", (event) => {
      const at = inside(svg, event);
      const column = Math.floor((at.x - left) / width), row = Math.floor((at.y - top) / height);
      if (column < 0 || column >= columns || row < 0 || row >= rows) return box.hide();
      const text = ratios[row][column];
      const x = left + column * width, y = top + row * height;
      const away = Math.log(Number(text)) / spreads[row];
      const words = `${text}x, ${Math.abs(away).toFixed(1)}σ ${away < 0 ? "worse" : "better"}`;
      const value = text === "x" ? "failed" : text === "" ? "no number" : words;
      const frame = `M${x} ${y}h${width}v${height}h-${width}z`;
      return box.show(x + width, y + height, frame, [names[row], nights[column], value]);
    });
    svg.addEventListener("pointerleave", box.hide);
  }

  for (const figure of document.querySelectorAll("figure.chart")) {
    const svg = figure.querySelector("svg");
    const chart = data?.charts[figure.dataset.chart];
    if (svg?.dataset.cells) hoverMap(figure, svg);
    else if (svg && chart && data.t.length) hover(figure, svg, chart);
  }
})();
