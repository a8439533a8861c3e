// Sparsity patterns: one canvas pixel per cell, enlarged by the style sheet.

const paints = []; // functions that paint one image each
const whole = (count) => count.toLocaleString("en");
const isMatrix = (image) => image.shape.filter((side) => side > 1).length > 1;

function paint(canvas, image, largest) {
  const pen = canvas.getContext("2d");
  const css = getComputedStyle(document.documentElement);
  const cell = (i, name, alpha) => {
    pen.globalAlpha = alpha;
    pen.fillStyle = css.getPropertyValue(name);
    pen.fillRect(i % image.cols, Math.floor(i / image.cols), 1, 1);
  };
  pen.clearRect(0, 0, image.cols, image.rows);
  image.cells.forEach((v, i) => {
    if (v === null) return;
    cell(i, "--zero", 1);
    if (v === 0) return;
    const strength = image.shares ? v : Math.sqrt(Math.abs(v) / largest);
    cell(i, image.shares ? "--share" : v > 0 ? "--plus" : "--minus", 0.25 + 0.75 * strength);
  });
}

function describe(image, row, col) {
  const i = row * image.cols + col;
  const v = image.cells[i];
  if (!isNumber(v)) return null;
  const reach = (start, by) => (by === 1 ? `${start}` : `${start}…${start + by - 1}`);
  const place = [reach((isMatrix(image) ? col : i) * image.wide, image.wide)];
  if (isMatrix(image)) place.unshift(reach(row * image.high, image.high));
  if (image.transposed) place.reverse();
  const value = image.shares ? `${show(100 * v, "number", 2)} % non-zero` : show(v, "number");
  return `${image.name}[${place.join(", ")}]: ${value}`;
}

function drawBlock(parent, image, named, largest) {
  const holder = add(parent, "div", { class: "block" });
  if (named) {
    const size = image.shape.reduce((a, b) => a * b, 1);
    const shape = image.shape.join(" × ") + (image.transposed ? " (transposed)" : "");
    add(holder, "p", {}, `${image.name}, ${shape}: ${whole(image.nonzeros)} of ${whole(size)} non-zero`);
  }
  const about = `${image.name}: ${image.nonzeros} non-zeros`;
  const canvas = add(holder, "canvas", { width: image.cols, height: image.rows, role: "img", "aria-label": about });
  const side = Math.min(image.rows === 1 ? 14 : 8, Math.max(3, (image.rows === 1 ? 1200 : 800) / image.cols));
  canvas.style.width = `${Math.max(24, image.cols * side)}px`;
  canvas.style.height = `${image.rows === 1 ? 24 : Math.min(160, Math.max(24, image.rows * side))}px`;
  paints.push(() => paint(canvas, image, largest));
  const read = (e) => {
    const frame = canvas.getBoundingClientRect();
    const row = Math.floor(((e.clientY - frame.top) / frame.height) * image.rows);
    const col = Math.floor(((e.clientX - frame.left) / frame.width) * image.cols);
    const text = describe(image, row, col);
    if (text) showTip(e.clientX, e.clientY + 14, e.clientY + 14, (box) => add(box, "span", {}, text));
    else hideTip();
  };
  for (const kind of ["pointermove", "pointerdown"]) canvas.addEventListener(kind, read);
  canvas.addEventListener("pointerleave", hideTip);
}

function drawModel(parent, model) {
  const figure = add(parent, "figure", { class: "model" });
  const caption = add(figure, "figcaption");
  swatch(caption, model.colour);
  add(caption, "b", {}, model.label);
  const share = show((100 * model.nonzeros) / model.size, "number", 3);
  const count = `${whole(model.nonzeros)} of ${whole(model.size)} non-zero (${share} %)`;
  add(caption, "span", {}, `${model.finite ? count : "not finite"}, seed ${model.seed}`);
  const values = model.blocks.filter((image) => !image.shares).flatMap((image) => image.cells);
  const largest = values.reduce((a, v) => Math.max(a, Math.abs(v)), 0) || 1;
  const named = model.blocks.length > 1 || isMatrix(model.blocks[0]);
  const blocks = add(figure, "div", { class: "blocks" });
  for (const image of model.blocks) drawBlock(blocks, image, named, largest);
}
