// Elements, colours, numbers and the box that shows values: what charts, patterns and tables share.

const data = JSON.parse(document.getElementById("data").textContent);
const isNumber = (v) => v !== null && v !== undefined;

function add(parent, tag, attributes = {}, text) {
  const drawing = tag === "svg" || parent.namespaceURI.endsWith("svg");
  const element = document.createElementNS(`http://www.w3.org/${drawing ? "2000/svg" : "1999/xhtml"}`, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  if (text !== undefined) element.textContent = text;
  return parent.appendChild(element);
}

// Eight colours; algorithms that share one have different dash patterns.
const DASHES = ["none", "8 3", "2 3", "10 3 2 3", "5 2"];
const colour = (i) => `var(--c${i % 8})`;
const dash = (i) => DASHES[((i % 8) + Math.floor(i / 8)) % DASHES.length];
const stroke = (i) => ({ stroke: colour(i), "stroke-dasharray": dash(i) });

function swatch(parent, i) {
  const svg = add(parent, "svg", { class: "line", width: 26, height: 12, "aria-hidden": "true" });
  add(svg, "line", { x1: 0, x2: 26, y1: 6, y2: 6, ...stroke(i) });
}

function scaled(v, units, digits) {
  let power = 0;
  v = Number(v.toPrecision(digits));
  while (Math.abs(v) >= 1000 && power < units.length - 1) {
    v /= 1000;
    power += 1;
  }
  return Number(v.toPrecision(digits)) + units[power];
}

const scientific = (v, digits) => v.toExponential(digits - 1).replace(/\.?0+e/, "e").replace("e+", "e");

function show(v, kind, digits = kind === "fine" ? 6 : 4) {
  const size = Math.abs(v);
  if (kind === "bytes") return scaled(v, [" B", " kB", " MB", " GB", " TB"], digits);
  if (kind === "count") return size < 1e4 ? String(Number(v.toFixed(1))) : scaled(v, ["", "k", "M", "G", "T"], digits);
  if (kind === "seconds") return `${Number(v.toPrecision(digits))} s`;
  return v !== 0 && (size < 1e-3 || size >= 1e5) ? scientific(v, digits) : String(Number(v.toPrecision(digits)));
}

const tip = add(document.body, "div", { class: "tip", hidden: "" });
const hideTip = () => { tip.hidden = true; };

// Beside the position if there is room, else below what is pointed at, which reaches from top to bottom, or above it.
function showTip(left, top, bottom, fill) {
  tip.replaceChildren();
  fill(tip);
  tip.hidden = false;
  const { width, height } = tip.getBoundingClientRect();
  const [right, low] = [document.documentElement.clientWidth - width - 4, window.innerHeight - height - 4];
  const x = left + 14 <= right ? left + 14 : left - 14 - width;
  const y = x >= 4 ? top : bottom + 6 <= low ? bottom + 6 : top - height - 6;
  tip.style.left = `${Math.max(4, Math.min(x, right))}px`;
  tip.style.top = `${Math.max(4, Math.min(y, low))}px`;
}

document.addEventListener("pointerdown", (e) => { if (!e.target.closest("svg, canvas")) hideTip(); });
document.addEventListener("scroll", hideTip, { passive: true });
