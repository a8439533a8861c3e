// Saves what is shown: a chart as SVG or PNG, a table as CSV or LaTeX. Nothing leaves the browser.

const fileName = (...parts) => parts.join("-").replace(/[^\w.-]+/g, "-");

function download(name, blob) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

function saveButton(parent, text, about, act) {
  add(parent, "button", { type: "button", class: "save", title: about, "aria-label": about }, text)
    .addEventListener("click", act);
}

// ---- charts --------------------------------------------------------------------------------------------------------

const STYLED = [
  ...["fill", "fill-opacity", "stroke", "stroke-width", "stroke-opacity", "stroke-dasharray", "stroke-linejoin"],
  ...["stroke-linecap", "font-size", "font-family"],
];

// The chart as a file of its own: styles written out, and the names of the algorithms below it.
function standalone(svg) {
  const copy = svg.cloneNode(true);
  const [from, to] = [svg, copy].map((root) => [root, ...root.querySelectorAll("*")]);
  from.forEach((element, i) => {
    const style = getComputedStyle(element);
    for (const name of STYLED) to[i].style.setProperty(name, style.getPropertyValue(name));
  });
  copy.querySelector(".marks")?.remove();
  const [width, height, gap] = [svg.width.baseVal.value, svg.height.baseVal.value, 20];
  const style = getComputedStyle(document.body);
  const shown = data.curves.filter((c) => !hidden.has(c.label));
  const wide = Math.min(width, 50 + 8 * Math.max(...shown.map((c) => c.label.length)));
  const across = Math.max(1, Math.floor(width / wide));
  shown.forEach((c, i) => {
    const [x, y] = [10 + (i % across) * wide, height + gap * (Math.floor(i / across) + 0.5)];
    const line = add(copy, "line", { x1: x, x2: x + 26, y1: y, y2: y, "stroke-width": 2.5, ...stroke(c.colour) });
    line.style.stroke = style.getPropertyValue(`--c${c.colour % 8}`);
    const text = add(copy, "text", { x: x + 33, y: y + 4 }, c.label);
    text.style.cssText = `fill: ${style.color}; font: 12px sans-serif`;
  });
  const title = add(copy, "text", { x: 10, y: -6 }, svg.getAttribute("aria-label").split(";")[0]);
  title.style.cssText = `fill: ${style.color}; font: bold 12px sans-serif`;
  const tall = gap + height + gap * Math.ceil(shown.length / across) + 6;
  const back = add(copy, "rect", { y: -gap, width, height: tall, fill: style.getPropertyValue("--card") });
  copy.prepend(back);
  copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  copy.setAttribute("height", tall);
  copy.setAttribute("viewBox", `0 ${-gap} ${width} ${tall}`);
  return { text: new XMLSerializer().serializeToString(copy), width, height: tall };
}

async function savePng(name, { text, width, height }) {
  const image = new Image();
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(text)}`;
  await image.decode();
  const canvas = Object.assign(document.createElement("canvas"), { width: 3 * width, height: 3 * height });
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  canvas.toBlob((blob) => download(name, blob), "image/png");
}

function offerChart(parent, box, names) {
  const place = add(parent, "p", { class: "saves" });
  const svg = () => box.querySelector("svg");
  saveButton(place, "SVG", "Save this chart as SVG", () => {
    if (svg()) download(fileName(...names()) + ".svg", new Blob([standalone(svg()).text], { type: "image/svg+xml" }));
  });
  saveButton(place, "PNG", "Save this chart as PNG", () => {
    if (svg()) savePng(fileName(...names()) + ".png", standalone(svg()));
  });
}

// ---- tables --------------------------------------------------------------------------------------------------------

function offerTable(parent, { name, csv, latex }) {
  const of = data.tables.length > 1 ? ` of ${name}` : "";
  saveButton(parent, `CSV${of}`, `Save the table${of} as CSV`, () => download(fileName(name) + ".csv", new Blob([csv])));
  saveButton(parent, `LaTeX${of}`, `Save the table${of} as LaTeX`, () => download(fileName(name) + ".tex", new Blob([latex])));
}
