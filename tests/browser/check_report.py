"""Open reports in headless Chromium, offline, on a laptop and on a phone, and fail on anything a reader would notice.

    python tests/browser/check_report.py [FILE.html ...] [--screenshots DIR]

The report of a small made-up run is always checked. Returns 1 if something is wrong, 2 if there is no Chromium.
"""

from __future__ import annotations

import argparse
import base64
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from devtools import Browser, chromium, installed
from sample_run import sample_report

LIMIT = 2_000_000
MISSING = "There is no Chromium here: install the package 'chromium' (Debian: apt install chromium) to check reports."


class Screen(NamedTuple):
    name: str
    width: int
    height: int
    mobile: bool
    scheme: str


SCREENS = (
    Screen("laptop", 1366, 768, False, "light"),
    Screen("phone", 390, 844, True, "light"),
    Screen("laptop-dark", 1366, 768, False, "dark"),
)


def check(driven: Browser, report: Path, screenshots: Path | None = None) -> list[str]:
    """Everything that is wrong with a report."""
    problems = []
    if report.stat().st_size > LIMIT:
        problems.append(f"the file has {report.stat().st_size:,} bytes; {LIMIT:,} are allowed")
    for screen in SCREENS:
        picture = screenshots / f"{report.stem}-{screen.name}.png" if screenshots else None
        problems += check_screen(driven, report.resolve().as_uri(), screen, picture)
    return problems


_LOOK = """
(() => {
  const charts = [...document.querySelectorAll("#panels svg[role=img], #explorer svg[role=img]")];
  const stats = [...document.querySelectorAll(".client-stats > div")];
  const drawings = [...charts, ...document.querySelectorAll(".client-stats svg")];
  const points = (path) => path.getAttribute("d").split(/[ML]/).length - 1;
  const small = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const parent = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || parent.closest("script, style, noscript")) continue;
    if (parseFloat(getComputedStyle(parent).fontSize) < 12) small.push(walker.currentNode.data.trim());
  }
  const outside = drawings.flatMap((svg) => {
    const frame = svg.getBoundingClientRect();
    return [...svg.querySelectorAll("text")].filter((text) => {
      const box = text.getBoundingClientRect();
      return box.left < frame.left - 1 || box.right > frame.right + 1;
    }).map((text) => text.textContent);
  });
  const overlapping = drawings.flatMap((svg) => {
    const labels = [...svg.querySelectorAll("text:not(.name)")];
    const meet = (a, b) =>
      a.left < b.right && b.left < a.right && a.top + 3 < b.bottom && b.top + 3 < a.bottom;
    const boxes = labels.map((text) => text.getBoundingClientRect());
    const met = labels.filter((_, i) => boxes.some((box, j) => j < i && meet(box, boxes[i])));
    return met.map((text) => text.textContent);
  });
  return {
    width: document.documentElement.scrollWidth,
    charts: charts.length,
    lines: charts.map((svg) => [...svg.querySelectorAll("path.curve")].filter((path) => points(path) > 1).length),
    broken: [...document.querySelectorAll("path")].filter((path) => /NaN|Infinity/.test(path.getAttribute("d"))).length,
    blank: stats.filter((box) => !box.querySelector("svg .size")).length,
    small, outside, overlapping,
  };
})()
"""

_USE = """
(async () => {
  const problems = [];
  const frame = () => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
  const controls = document.getElementById("controls").elements;
  const change = (element) => element.dispatchEvent(new Event("change", { bubbles: true }));
  const start = [controls.y.value, controls.x.value];
  for (const y of controls.y.options) for (const x of controls.x.options) for (const log of [false, true]) {
    [controls.y.value, controls.x.value] = [y.value, x.value];
    change(controls.y); change(controls.x);
    controls.logy.checked = controls.logx.checked = log;
    change(controls.logy);
    const drawn = document.querySelector("#explorer svg[role=img], #explorer .empty");
    const paths = [...drawn.querySelectorAll("path")].map((path) => path.getAttribute("d"));
    if (paths.some((d) => /NaN|Infinity/.test(d))) problems.push(`${y.value} against ${x.value} draws a broken path`);
  }
  [controls.y.value, controls.x.value] = start;
  change(controls.y); change(controls.x);

  const svg = document.querySelector("#explorer svg[role=img]"), box = svg.getBoundingClientRect();
  const at = { clientX: box.left + box.width / 2, clientY: box.top + box.height / 2, bubbles: true };
  svg.dispatchEvent(new PointerEvent("pointermove", at));
  await frame();
  const tip = document.querySelector(".tip");
  if (tip.hidden || !tip.textContent.trim()) problems.push("pointing at a chart shows no values");
  if (document.documentElement.scrollWidth > innerWidth) problems.push("the values make the page too wide");
  svg.dispatchEvent(new PointerEvent("pointerleave", at));

  const cells = document.querySelector(".client-stats svg .none");
  if (cells) {
    cells.scrollIntoView({ block: "center" });
    await frame();
    const place = cells.getBoundingClientRect();
    const over = { clientX: place.left + place.width / 3, clientY: place.top + place.height / 3, bubbles: true };
    cells.dispatchEvent(new PointerEvent("pointermove", over));
    await frame();
    if (tip.hidden || !/^client \\d+: [\\d,]+ samples/.test(tip.textContent)) problems.push("a cell shows no numbers");
    if (document.documentElement.scrollWidth > innerWidth) problems.push("the numbers make the page too wide");
  }

  const count = () => document.querySelectorAll("#explorer path.curve").length;
  const buttons = [...document.querySelectorAll("#legend button")], before = count();
  buttons.forEach((button) => button.click());
  if (count() > 0) problems.push("the legend does not hide the curves");
  buttons.forEach((button) => button.click());
  if (count() !== before) problems.push("the legend does not show again what it hid");

  for (const head of document.querySelectorAll(".results thead button")) {
    const table = head.closest("table"), column = head.closest("th").cellIndex, name = head.textContent.trim();
    const values = () => [...table.tBodies[0].rows].map((line) => line.cells[column].dataset.value)
      .filter((value) => value !== undefined).map(Number);
    for (const sign of [1, -1]) {
      head.click();
      const wrong = values().some((value, i, all) => i && sign * (value - all[i - 1]) < 0);
      if (wrong) problems.push(`a table does not sort by ${name}`);
    }
    const order = () => [...table.tBodies[0].rows].map((line) => line.cells[0].textContent).join();
    const down = order();
    if (column === 0 && (head.click(), order()) === down) problems.push("a table does not sort by its first column");
  }
  return problems;
})()
"""


_SAVE = """
(async () => {
  const saved = [], problems = [];
  const real = [URL.createObjectURL, HTMLAnchorElement.prototype.click];
  URL.createObjectURL = (blob) => (saved.push({ blob }), "blob:none");
  HTMLAnchorElement.prototype.click = function () { saved.at(-1).name = this.download; };
  const buttons = [...document.querySelectorAll("button.save")];
  for (const button of buttons) {
    const before = saved.length;
    button.click();
    for (let i = 0; i < 200 && saved.length === before; i += 1) await new Promise((done) => setTimeout(done, 10));
  }
  [URL.createObjectURL, HTMLAnchorElement.prototype.click] = real;
  const [done, all] = [saved.length, buttons.length];
  if (!all || done !== all) problems.push(`${done} of ${all} buttons save a file`);
  const legend = [...document.querySelectorAll("#legend button span")].map((span) => span.textContent);
  for (const { blob, name } of saved) {
    const ending = name.split(".").at(-1), text = await blob.text();
    if (ending === "svg") {
      const parsed = new DOMParser().parseFromString(text, "image/svg+xml");
      const broken = parsed.querySelector("parsererror") || /var\\(--/.test(text) && !/stroke: (rgb|#)/.test(text);
      const words = [...parsed.querySelectorAll("text")].map((t) => t.textContent);
      if (broken || !legend.every((label) => words.includes(label))) problems.push(`${name} is no complete picture`);
    }
    if (ending === "png" && (await createImageBitmap(blob)).width < 500) problems.push(`${name} is too small`);
    if (ending === "tex" && !text.includes("toprule")) problems.push(`${name} has no table`);
    if (ending === "csv" && !text.startsWith("algorithm,")) problems.push(`${name} has no table`);
  }
  return problems;
})()
"""


def check_screen(driven: Browser, url: str, screen: Screen, picture: Path | None) -> list[str]:
    """Everything that is wrong with the page on this screen; also takes its picture, if asked."""
    driven.open_tab()
    for domain in ("Page", "Runtime", "Log", "Network"):
        driven.call(f"{domain}.enable")
    driven.call("Network.emulateNetworkConditions", offline=True, latency=0, downloadThroughput=0, uploadThroughput=0)
    size = {"width": screen.width, "height": screen.height}
    driven.call("Emulation.setDeviceMetricsOverride", **size, deviceScaleFactor=1, mobile=screen.mobile)
    driven.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": screen.scheme}])
    driven.call("Page.navigate", url=url)
    driven.wait_for("Page.loadEventFired")
    driven.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")

    seen = driven.evaluate(_LOOK)
    if picture is not None:
        shot = driven.call("Page.captureScreenshot", captureBeyondViewport=True)
        picture.write_bytes(base64.b64decode(shot["data"]))
    problems = [*driven.evaluate(_USE), *driven.evaluate(_SAVE)] if seen["charts"] else []

    if seen["width"] > screen.width:
        problems.append(f"the page is {seen['width']} pixels wide in a window of {screen.width}")
    if not seen["charts"] or not all(seen["lines"]):
        problems.append("a chart has no curve with more than one point")
    if seen["blank"]:
        problems.append(f"{seen['blank']} pictures of who holds what are not drawn")
    if seen["broken"]:
        problems.append(f"{seen['broken']} paths have coordinates that are not numbers")
    problems += [f"text below 12 pixels: {text!r}" for text in seen["small"]]
    problems += [f"a label leaves its chart: {text!r}" for text in seen["outside"]]
    problems += [f"labels overlap at {text!r}" for text in seen["overlapping"]]
    problems += [problem for event in driven.events if (problem := event_problem(event))]
    driven.close_tab()
    return [f"{screen.name}: {problem}" for problem in problems]


def event_problem(event: dict[str, Any]) -> str | None:
    """What an event of the browser says against the page."""
    params = event["params"]
    match event["method"]:
        case "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            return f"script error: {details.get('exception', {}).get('description', details['text'])}"
        case "Runtime.consoleAPICalled" if params["type"] in ("error", "assert"):
            return f"console error: {params['args']}"
        case "Log.entryAdded" if params["entry"]["level"] == "error":
            return f"browser error: {params['entry']['text']}"
        case "Network.requestWillBeSent" if not params["request"]["url"].startswith(("file:", "data:")):
            return f"network request: {params['request']['url']}"
    return None


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", type=Path, nargs="*", help="more reports")
    parser.add_argument("--screenshots", type=Path, help="a folder for pictures of them")
    given = parser.parse_args(arguments)
    path = installed()
    if path is None:
        print(MISSING, file=sys.stderr)
        return 2
    for file in given.files:
        if not file.is_file():
            print(f"there is no report {file}", file=sys.stderr)
            return 2
    if given.screenshots:
        given.screenshots.mkdir(parents=True, exist_ok=True)
    wrong = False
    with tempfile.TemporaryDirectory() as scratch, chromium(path) as driven:
        for report in [sample_report(Path(scratch)), *given.files]:
            problems = check(driven, report, given.screenshots)
            print(f"{report.name}: {len(problems)} problems" if problems else f"{report.name} is fine")
            print(*problems, sep="\n", end="\n" if problems else "", file=sys.stderr)
            wrong |= bool(problems)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
