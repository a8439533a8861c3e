// Who holds what: a line per client, a cell per class, and the client's size as a bar beside them.

const SHADES = 20;

// Every so many-th position has a label, so that labels are at least `room` pixels apart.
function labelled(count, step, room) {
  const every = Math.max(1, Math.ceil(room / step));
  return Array.from({ length: Math.ceil(count / every) }, (_, i) => i * every);
}

function clientStatsFrame(box, { ids, classes, largest }) {
  const wide = (texts) => 7.5 * Math.max(...texts.map((text) => String(text).length));
  const width = Math.max(240, box.clientWidth);
  const high = Math.max(3, Math.min(22, 480 / ids.length));
  const left = Math.max(44, wide(ids) + 10);
  const numbers = high >= 16 ? wide([whole(largest)]) + 8 : 0; // sizes are written out where lines are high enough
  const bars = Math.min(200, Math.max(56, width / 6));
  const room = width - left - bars - numbers - 16;
  const cell = classes.length ? Math.min(classes.length < 20 ? 44 : 14, room / classes.length) : 0;
  const across = cell * classes.length;
  const spread = classes.length ? bars : Math.min(480, width - left - numbers - 8);
  return { width, high, left, cell, across, top: 24, start: left + across + (across ? 16 : 0), bars: spread };
}

function drawClientStats(box, picture) {
  const { ids, sizes, classes, largest, about } = picture;
  const draw = () => {
    const frame = clientStatsFrame(box, picture);
    const { width, high, left, cell, across, top, start, bars } = frame;
    const bottom = top + high * ids.length;
    box.replaceChildren();
    const svg = add(box, "svg", { width, height: bottom + 6, role: "img", "aria-label": about });
    add(svg, "text", { x: left - 8, y: top - 8, "text-anchor": "end" }, "client");
    add(svg, "text", { x: start, y: top - 8 }, "samples");
    for (const i of labelled(ids.length, high, 16)) {
      add(svg, "text", { x: left - 8, y: top + high * (i + 0.5) + 4, "text-anchor": "end" }, ids[i]);
    }
    const longest = 7.5 * Math.max(0, ...classes.map((name) => name.length));
    for (const k of labelled(classes.length, cell, longest + 6)) {
      const x = left + cell * (k + 0.5);
      if (x + longest / 2 > start - 8) continue;
      add(svg, "text", { x, y: top - 8, "text-anchor": "middle" }, classes[k]);
    }
    if (across) {
      add(svg, "rect", { class: "none", x: left, y: top, width: across, height: bottom - top });
      drawCells(svg, frame, picture);
    }
    sizes.forEach((size, i) => {
      const [length, thick] = [Math.max(1, (bars * size) / largest), high < 8 ? high : 0.7 * high];
      add(svg, "rect", { class: "size", x: start, y: top + high * (i + 0.5) - thick / 2, width: length, height: thick });
      if (high < 16) return;
      add(svg, "text", { x: start + length + 5, y: top + high * (i + 0.5) + 4 }, whole(size));
    });
    const here = add(svg, "rect", { class: "here", height: high, visibility: "hidden" });
    readClientStats(svg, here, frame, picture);
  };
  let drawn = 0;
  new ResizeObserver(() => {
    if (box.clientWidth === drawn) return;
    drawn = box.clientWidth;
    draw();
  }).observe(box);
}

// One path per shade: thousands of cells would be too many elements.
function drawCells(svg, { left, top, high, cell }, { counts, sizes, strongest }) {
  const shades = Array.from({ length: SHADES + 1 }, () => []);
  counts.forEach((line, i) => line.forEach((count, k) => {
    if (!count) return;
    const shade = Math.ceil(SHADES * Math.sqrt(count / sizes[i] / strongest) - 1e-9); // the root lifts small parts
    const place = `${(left + cell * k).toFixed(2)} ${(top + high * i).toFixed(2)}`;
    shades[shade].push(`M${place}h${cell.toFixed(2)}v${high.toFixed(2)}h${(-cell).toFixed(2)}z`);
  }));
  shades.forEach((cells, shade) => {
    if (!cells.length) return;
    const strength = 0.1 + (0.9 * shade) / SHADES;
    const looks = { class: "held", "fill-opacity": strength, "shape-rendering": "crispEdges" };
    add(svg, "path", { ...looks, d: cells.join("") });
  });
}

function readClientStats(svg, here, { left, top, high, cell, across }, { ids, sizes, classes, counts }) {
  const clear = () => {
    here.setAttribute("visibility", "hidden");
    hideTip();
  };
  const read = (e) => {
    const corner = svg.getBoundingClientRect();
    const i = Math.floor((e.clientY - corner.top - top) / high);
    const k = Math.floor((e.clientX - corner.left - left) / cell);
    if (!(i in sizes)) return clear();
    const inside = across && k in classes;
    const place = inside ? { x: left + cell * k, width: cell } : { x: left, width: across };
    for (const [name, value] of Object.entries({ ...place, y: top + high * i })) here.setAttribute(name, value);
    here.setAttribute("visibility", across ? "visible" : "hidden");
    const lines = [`client ${ids[i]}: ${whole(sizes[i])} samples`];
    if (inside) {
      const part = show((100 * counts[i][k]) / sizes[i], "number", 3);
      lines.push(`class ${classes[k]}: ${whole(counts[i][k])}, ${part} %`);
    } else if (across) {
      lines.push(`${counts[i].filter(Boolean).length} of ${classes.length} classes`);
    }
    showTip(e.clientX, e.clientY + 14, e.clientY + 14, (tip) => lines.forEach((line) => add(tip, "div", {}, line)));
  };
  for (const kind of ["pointermove", "pointerdown"]) svg.addEventListener(kind, read);
  svg.addEventListener("pointerleave", (e) => {
    if (e.pointerType !== "touch") clear();
  });
}
