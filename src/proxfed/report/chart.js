// One chart: median lines with bands over the seeds, axes, crosses where a seed diverged, values under the pointer.

const hidden = new Set(); // labels of the algorithms that are switched off
const charts = []; // functions that redraw one chart each
const column = (columns, name) => columns.find((c) => c.name === name);

// ---- scales --------------------------------------------------------------------------------------------------------

function scale(low, high, log, from, to) {
  const f = log ? Math.log10 : (v) => v;
  const at = (v) => from + ((f(v) - f(low)) / (f(high) - f(low))) * (to - from);
  const holds = (v) => isNumber(v) && (!log || v > 0);
  return Object.assign(at, { low, high, log, holds });
}

function multiples(low, high, by) {
  const first = Math.ceil(low / by - 1e-9);
  return Array.from({ length: Math.floor(high / by + 1e-9) - first + 1 }, (_, i) => (first + i) * by);
}

function ticks({ low, high, log }, count) {
  if (log) {
    const [from, to] = [Math.log10(low), Math.log10(high)];
    const decades = multiples(from, to, Math.max(1, Math.ceil((to - from) / count)));
    if (decades.length > 2) return decades.map((e) => Number(`1e${Math.round(e)}`));
    const powers = multiples(Math.floor(from), to, 1).flatMap((e) => [1, 2, 5].map((m) => Number(`${m}e${e}`)));
    const inside = powers.filter((v) => v >= low && v <= high);
    if (inside.length > 1) return inside;
  }
  const power = 10 ** Math.floor(Math.log10((high - low) / count));
  return multiples(low, high, [1, 2, 2.5, 5, 10].map((m) => m * power).find((step) => (high - low) / step <= count));
}

// As few digits as tell the ticks apart; powers of ten over many decades all in one style.
function tickLabels(values, kind, log) {
  if (log && ["number", "fine"].includes(kind) && values.length && values.at(-1) / values[0] > 999) {
    return values.map((v) => (v === 1 ? "1" : scientific(v, 1)));
  }
  for (let digits = 1; digits < 9; digits += 1) {
    const exact = values.every((v) => Math.abs(Number(v.toPrecision(digits)) - v) <= 1e-9 * Math.abs(v));
    if (exact) return values.map((v) => show(v, kind, digits));
  }
  return values.map((v) => show(v, kind, 9));
}

// The range of some values with a little room; null if there is nothing to show.
function span(values, log, room) {
  const usable = values.filter((v) => isNumber(v) && (!log || v > 0));
  if (!usable.length) return null;
  const low = usable.reduce((a, b) => Math.min(a, b));
  const high = usable.reduce((a, b) => Math.max(a, b));
  if (log) {
    const factor = (low === high ? 2 : 1) * (1 + 8 * room);
    return [Math.max(low, high * 1e-20) / factor, high * factor];
  }
  const more = low === high ? Math.abs(low) * 0.05 || 1 : (high - low) * room;
  return [low - more, high + more];
}

// A curve that blew up may leave at the top, else it would flatten all the others.
function verticalSpan(curves, y, log, band) {
  const survives = (c) => 2 * c.diverged <= c.seeds;
  if (!curves.some(survives)) return span(curves.flatMap((c) => c.middle[y]), log, 0.04);
  const range = span(curves.flatMap((c) => {
    if (!survives(c)) return c.middle[y].filter(isNumber).slice(0, 1);
    return band && c.low[y] && !c.diverged ? [...c.middle[y], ...c.low[y], ...c.high[y]] : c.middle[y];
  }), log, 0.04);
  if (range && !curves.every(survives)) range[1] = log ? range[1] * 10 : range[1] + (range[1] - range[0]) * 0.2;
  return range;
}

// ---- drawing -------------------------------------------------------------------------------------------------------

function chart(box, height, settings) {
  const draw = () => {
    const { x, y, logx, logy, band } = settings();
    const curves = data.curves.filter((c) => !hidden.has(c.label) && c.middle[y].some(isNumber));
    const xs = span(curves.flatMap((c) => c.x[x]), logx, 0);
    const ys = verticalSpan(curves, y, logy, band);
    box.replaceChildren();
    if (!xs || !ys) {
      add(box, "p", { class: "empty" }, curves.length ? "Nothing above zero: no log axis." : "Nothing to draw.");
      return;
    }
    const [xColumn, yColumn] = [column(data.progress, x), column(data.measures, y)];
    const frame = { width: Math.max(240, box.clientWidth), height, top: 10, bottom: height - 44 };
    const Y = scale(...ys, logy, frame.bottom, frame.top);
    const yTicks = ticks(Y, Math.max(3, Math.floor(height / 42)));
    const yLabels = tickLabels(yTicks, yColumn.kind, logy);
    frame.left = 12 + 7.5 * Math.max(0, ...yLabels.map((label) => label.length));
    frame.right = frame.width - 18;
    const X = scale(...xs, logx, frame.left, frame.right);
    const xTicks = ticks(X, Math.max(2, Math.floor((frame.right - frame.left) / 64)));

    const about = `${yColumn.label} against ${xColumn.label}; the arrow keys read values`;
    const svg = add(box, "svg", { width: frame.width, height, role: "img", tabindex: 0, "aria-label": about });
    drawAxes(svg, frame, X, Y, xTicks, tickLabels(xTicks, xColumn.kind, logx), yTicks, yLabels);
    const name = { class: "name", x: (frame.left + frame.right) / 2, y: height - 6, "text-anchor": "middle" };
    add(svg, "text", name, xColumn.label + (logx ? " (log)" : ""));

    const clamp = (v) => Math.min(frame.bottom, Math.max(frame.top, Y(Y.log ? Math.max(v, 1e-300) : v)));
    const view = { x, y, X, Y, clamp, xColumn, yColumn };
    const bands = add(svg, "g", { "fill-opacity": curves.length > 4 ? 0.08 : 0.14 }); // below all lines
    for (const c of curves) drawCurve(svg, band && c.low[y] ? bands : null, c, view);
    readable(svg, frame, curves, view);
  };
  let drawn = 0;
  charts.push(draw);
  new ResizeObserver(() => {
    if (box.clientWidth === drawn) return;
    drawn = box.clientWidth;
    draw();
  }).observe(box);
}

function drawAxes(svg, { left, right, bottom }, X, Y, xTicks, xLabels, yTicks, yLabels) {
  yTicks.forEach((v, i) => {
    add(svg, "line", { class: "grid", x1: left, x2: right, y1: Y(v), y2: Y(v) });
    add(svg, "text", { x: left - 7, y: Y(v) + 4, "text-anchor": "end" }, yLabels[i]);
  });
  add(svg, "line", { class: "axis", x1: left, x2: right, y1: bottom, y2: bottom });
  xTicks.forEach((v, i) => {
    add(svg, "line", { class: "axis", x1: X(v), x2: X(v), y1: bottom, y2: bottom + 4 });
    add(svg, "text", { x: X(v), y: bottom + 18, "text-anchor": X(v) > right - 16 ? "end" : "middle" }, xLabels[i]);
  });
}

function drawCurve(svg, bands, c, { x, y, X, Y, clamp }) {
  const visible = (i) => Y.holds(c.middle[y][i]) && X.holds(c.x[x][i]);
  const place = (i, values) => `${X(c.x[x][i]).toFixed(1)} ${clamp(values[i]).toFixed(1)}`;
  const pieces = []; // stretches without a hole
  c.middle[y].forEach((_, i) => {
    if (!visible(i)) return;
    if (pieces.at(-1)?.at(-1) === i - 1) pieces.at(-1).push(i);
    else pieces.push([i]);
  });
  for (const piece of pieces) {
    if (bands) {
      const above = piece.map((i) => place(i, c.high[y]));
      const below = [...piece].reverse().map((i) => place(i, c.low[y]));
      add(bands, "path", { d: `M${[...above, ...below].join("L")}Z`, fill: colour(c.colour) });
    }
    if (piece.length > 1) {
      const d = `M${piece.map((i) => place(i, c.middle[y])).join("L")}`;
      add(svg, "path", { class: "curve", d, ...stroke(c.colour) });
    } else {
      const [cx, cy] = place(piece[0], c.middle[y]).split(" ");
      add(svg, "circle", { r: 3, cx, cy, fill: colour(c.colour) });
    }
  }
  for (const cross of c.crosses) {
    let i = cross;
    while (i >= 0 && !visible(i)) i -= 1;
    if (i < 0) continue;
    const d = `M${place(i, c.middle[y])}m-5 -5l10 10m0 -10l-10 10`;
    add(svg, "path", { class: "cross", d, stroke: colour(c.colour) });
  }
}

// ---- reading values ------------------------------------------------------------------------------------------------

// The point of a curve that is nearest to a horizontal position, unless the curve ends before it.
function nearest(c, position, { x, y, X, Y }) {
  const points = [...c.x[x].keys()].filter((i) => X.holds(c.x[x][i]) && Y.holds(c.middle[y][i]));
  const found = points.map((i) => ({ c, i, away: X(c.x[x][i]) - position }));
  const best = found.reduce((a, b) => (Math.abs(b.away) < Math.abs(a.away) ? b : a), { away: Infinity });
  const around = found.some(({ away }) => away <= 0) && found.some(({ away }) => away >= 0);
  return around || Math.abs(best.away) < 24 ? [best] : [];
}

function readable(svg, { left, right, top, bottom }, curves, view) {
  const { x, y, X, clamp, xColumn, yColumn } = view;
  const marks = add(svg, "g", { class: "marks" });
  const clear = () => {
    marks.replaceChildren();
    hideTip();
  };
  let position = left;
  const read = (to) => {
    clear();
    position = Math.min(right, Math.max(left, to));
    const found = curves.flatMap((c) => nearest(c, position, view));
    if (!found.length) return;
    const closest = found.reduce((a, b) => (Math.abs(b.away) < Math.abs(a.away) ? b : a));
    const at = closest.c.x[x][closest.i];
    add(marks, "line", { x1: X(at), x2: X(at), y1: top, y2: bottom });
    for (const { c, i } of found) {
      add(marks, "circle", { r: 3.5, cx: X(c.x[x][i]), cy: clamp(c.middle[y][i]), fill: colour(c.colour) });
    }
    found.sort((a, b) => b.c.middle[y][b.i] - a.c.middle[y][a.i]);
    const corner = svg.getBoundingClientRect();
    showTip(corner.left + X(at), corner.top + top, corner.bottom, (box) => {
      add(box, "b", {}, `${xColumn.label}: ${show(at, xColumn.kind)}`);
      const table = add(box, "table");
      for (const { c, i } of found) {
        const line = add(table, "tr");
        swatch(add(line, "td"), c.colour);
        add(line, "td", {}, c.label);
        add(line, "td", {}, show(c.middle[y][i], yColumn.kind));
        if (!c.low[y]) continue;
        const ends = [c.low[y][i], c.high[y][i]].map((v) => show(v, yColumn.kind, 2));
        add(line, "td", { class: "range" }, ends.join(" … "));
      }
    });
  };
  for (const kind of ["pointermove", "pointerdown"]) {
    svg.addEventListener(kind, (e) => read(e.clientX - svg.getBoundingClientRect().left));
  }
  svg.addEventListener("pointerleave", (e) => {
    if (e.pointerType !== "touch") clear(); // after a touch the values stay to be read
  });
  svg.addEventListener("blur", clear);
  svg.addEventListener("keydown", (e) => {
    const way = { ArrowLeft: -1, ArrowRight: 1 }[e.key];
    if (!way) return;
    e.preventDefault();
    read(position + (way * (right - left)) / 40);
  });
}
