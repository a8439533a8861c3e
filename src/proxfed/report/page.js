// Fills the page: legend, panels, explorer, stats, patterns; sorts its tables.

const redraw = () => charts.forEach((draw) => draw());

// ---- curves --------------------------------------------------------------------------------------------------------

for (const c of data.curves) {
  const button = add(document.getElementById("legend"), "button", { type: "button", "aria-pressed": "true" });
  swatch(button, c.colour);
  add(button, "span", {}, c.label);
  if (c.diverged) add(button, "em", {}, `✕ ${c.diverged < c.seeds ? `${c.diverged} of ${c.seeds} ` : ""}diverged`);
  button.addEventListener("click", () => {
    if (!hidden.delete(c.label)) hidden.add(c.label);
    button.setAttribute("aria-pressed", String(!hidden.has(c.label)));
    redraw();
  });
}

const logByDefault = (y) => column(data.measures, y).log && data.curves.some((c) => c.middle[y].some((v) => v > 0));

// Algorithms that spend amounts of very different size share a linear axis badly, and bytes nearly always differ.
function logAcross(x) {
  if (column(data.progress, x).kind === "bytes") return true;
  const ends = data.curves.map((c) => c.x[x].findLast(isNumber)).filter((v) => v > 0);
  return x !== "round" && ends.length > 1 && Math.max(...ends) > 30 * Math.min(...ends);
}

function drawPanels(y) {
  const wanted = ["round", "bytes_total", "sim_seconds", "gradients", "wall_seconds", "proxes"];
  for (const x of wanted.filter((name) => column(data.progress, name)).slice(0, 3)) {
    const panel = add(document.getElementById("panels"), "figure");
    const caption = `${column(data.measures, y).label} against ${column(data.progress, x).label}`;
    add(panel, "figcaption", {}, caption);
    const box = add(panel, "div");
    chart(box, 250, () => ({ x, y, logx: logAcross(x), logy: logByDefault(y), band: true }));
    offerChart(panel, box, () => [y, x]);
  }
}

function drawExplorer(measure) {
  const controls = document.getElementById("controls");
  const { x, y, logx, logy, band } = controls.elements;
  for (const m of data.measures) add(y, "option", { value: m.name }, m.label);
  for (const p of data.progress) add(x, "option", { value: p.name }, p.label);
  y.value = measure;
  logy.checked = logByDefault(measure);
  band.closest("label").hidden = data.curves.every((c) => c.seeds < 2);
  y.addEventListener("change", () => { logy.checked = logByDefault(y.value); });
  x.addEventListener("change", () => { logx.checked = logAcross(x.value); });
  logx.checked = logAcross(x.value);
  const settings = () => ({
    x: x.value, y: y.value, logx: logx.checked, logy: logy.checked, band: band.checked,
  });
  const box = document.getElementById("explorer");
  chart(box, 420, settings);
  offerChart(box.parentNode, box, () => [y.value, x.value]);
  controls.addEventListener("change", charts.at(-1));
}

// The most telling measure that all algorithms have.
const common = ({ name }) => data.curves.every((c) => c.middle[name].some(isNumber));
const telling = ["gap", "error", "objective", "accuracy", "test_loss"].map((name) => column(data.measures, name)).filter(Boolean);
const measure = ([...telling, ...data.measures].find(common) ?? data.measures[0])?.name;
if (measure) {
  drawPanels(measure);
  drawExplorer(measure);
} else {
  document.getElementById("explore").hidden = true;
  add(document.getElementById("panels"), "p", { class: "empty" }, "Nothing has been recorded yet.");
}

// ---- tables --------------------------------------------------------------------------------------------------------

for (const place of document.querySelectorAll("[data-colour]")) swatch(place, Number(place.dataset.colour));

function sortBy(head) {
  const sign = head.getAttribute("aria-sort") === "ascending" ? -1 : 1;
  for (const other of head.parentNode.children) other.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", sign === 1 ? "ascending" : "descending");
  const body = head.closest("table").tBodies[0];
  const cell = (line) => line.children[head.cellIndex];
  const number = (line) => ("value" in cell(line).dataset ? Number(cell(line).dataset.value) : null);
  body.append(...[...body.rows].sort((a, b) => {
    const [u, v] = [number(a), number(b)];
    if (u !== null && v !== null) return sign * (u - v);
    if (u !== null || v !== null) return (u === null) - (v === null); // an empty cell comes last
    return sign * cell(a).textContent.localeCompare(cell(b).textContent, "en", { numeric: true });
  }));
}

for (const head of document.querySelectorAll(".results thead th")) head.addEventListener("click", () => sortBy(head));

for (const table of data.tables) offerTable(document.getElementById("save-tables"), table);

// ---- who holds what ------------------------------------------------------------------------------------------------

document.querySelectorAll(".client-stats > div").forEach((box, i) => drawClientStats(box, data.client_stats[i]));

// ---- patterns ------------------------------------------------------------------------------------------------------

const patterns = document.getElementById("patterns");
patterns.hidden = !data.models.length;
for (const model of data.models) drawModel(patterns, model);
const kinds = new Set(data.models.flatMap((model) => model.blocks.map((image) => image.shares)));
for (const [name, shares] of [["plus", false], ["minus", false], ["share", true]]) {
  patterns.querySelector(`.key .${name}`).parentNode.hidden = !kinds.has(shares);
}
const repaint = () => paints.forEach((one) => one());
repaint();
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", repaint);
