"""Open a report in headless Chromium, offline, on a laptop and on a phone, and fail on anything a reader would notice.

    python tools/check_report.py [FILE.html] [--screenshots DIR]

Without a file, the report of a small made-up run is checked. Chromium is driven over its debugging pipe, so nothing
beyond the standard library is needed.
"""

from __future__ import annotations

import argparse
import base64
import itertools
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

LIMIT = 2_000_000
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
MISSING = "No Chromium was found: install the package 'chromium' (Debian: apt install chromium) to check reports."
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)


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


# ---- the browser ----------------------------------------------------------------------------------------------------

# Chromium reads commands from descriptor 3 and answers on 4.
_LAUNCH = """
import fcntl, os, sys
commands, answers = (fcntl.fcntl(int(fd), fcntl.F_DUPFD, 10) for fd in sys.argv[1:3])
os.dup2(commands, 3)
os.dup2(answers, 4)
os.execv(sys.argv[3], sys.argv[3:])
"""


class Browser:
    """Sends commands of the DevTools protocol and keeps the events that arrive in between."""

    def __init__(self, commands: int, answers: int) -> None:
        self._commands, self._answers = os.fdopen(commands, "wb"), os.fdopen(answers, "rb")
        self._numbers = itertools.count(1)
        self._session: str | None = None
        self.events: list[dict[str, Any]] = []

    def call(self, method: str, **params: Any) -> Any:
        """The result of one command."""
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        self._commands.write(json.dumps(message).encode() + b"\0")
        self._commands.flush()
        while True:
            answer = self._read()
            if answer.get("id") == number:
                if "error" in answer:
                    raise SystemExit(f"Chromium refused {method}: {answer['error']['message']}")
                return answer["result"]

    def wait_for(self, method: str) -> None:
        while not any(event["method"] == method for event in self.events):
            self._read()

    def open_tab(self) -> None:
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.events.clear()

    def close_tab(self) -> None:
        self.call("Page.close")
        self._session = None

    def evaluate(self, script: str) -> Any:
        """The value of a JavaScript expression on the page."""
        result = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            raise SystemExit(f"the check's own script failed: {result['exceptionDetails']['exception']['description']}")
        return result["result"].get("value")

    def _read(self) -> dict[str, Any]:
        message = bytearray()
        while (byte := self._answers.read(1)) != b"\0":
            if not byte:
                raise SystemExit("Chromium ended before it answered")
            message += byte
        answer = json.loads(message)
        if "method" in answer:
            self.events.append(answer)
        return answer


@contextmanager
def browser(path: str) -> Iterator[Browser]:
    """A fresh Chromium with a profile of its own; both are gone afterwards."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        commands_out, commands_in = os.pipe()
        answers_out, answers_in = os.pipe()
        arguments = [str(commands_out), str(answers_in), path, *FLAGS, f"--user-data-dir={profile}"]
        process = subprocess.Popen(
            [sys.executable, "-c", _LAUNCH, *arguments],
            pass_fds=(commands_out, answers_in),
            stderr=subprocess.DEVNULL,
        )
        os.close(commands_out)
        os.close(answers_in)
        driven = Browser(commands_in, answers_out)
        try:
            yield driven
            driven.call("Browser.close")
            process.wait(timeout=10)
        finally:
            process.kill()
            process.wait()


# ---- the checks -----------------------------------------------------------------------------------------------------

_LOOK = """
(() => {
  const charts = [...document.querySelectorAll("#panels svg[role=img], #explorer svg[role=img]")];
  const holdings = [...document.querySelectorAll(".holding > div")];
  const drawings = [...charts, ...document.querySelectorAll(".holding svg")];
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
    blank: holdings.filter((box) => !box.querySelector("svg .size")).length,
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

  const cells = document.querySelector(".holding svg .none");
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

  for (const table of document.querySelectorAll(".results")) {
    const order = () => [...table.tBodies[0].rows].map((line) => line.cells[0].textContent).join();
    const head = table.querySelector("thead button");
    head.click();
    const up = order();
    head.click();
    if (table.tBodies[0].rows.length > 1 && up === order()) problems.push("a table does not sort");
  }
  return problems;
})()
"""


def check_screen(driven: Browser, url: str, screen: Screen, picture: Path) -> list[str]:
    """Everything that is wrong with the page on this screen; also takes its picture."""
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
    shot = driven.call("Page.captureScreenshot", captureBeyondViewport=True)
    picture.write_bytes(base64.b64decode(shot["data"]))
    problems = driven.evaluate(_USE) if seen["charts"] else []

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


# ---- a run to look at -----------------------------------------------------------------------------------------------


def sample_folder(path: Path) -> None:
    """A made-up run: six algorithms, one of which diverges, three seeds, 30 clients, a weight matrix and a bias."""
    import numpy as np
    import torch

    from proxfed.data.client_stats import ClientStats
    from proxfed.harness.run_folder import RunFolder

    draw = np.random.default_rng(0)
    rates = {"FedCEF, top-k 10 %": 0.06, "ZHJ": 0.045, "DEPOSITUM": 0.03, "FedAvg": 0.012, "Scaffold": 0.05}
    algorithms = list(rates.items())
    config = {
        "name": "sample",
        "description": "A made-up run of sparse multinomial regression that exercises every part of the report.",
        "seeds": [0, 1, 2],
        "problem": {"kind": "linear", "clients": 30, "l1": 0.002, "heterogeneity": {"kind": "dirichlet", "alpha": 0.1}},
        "algorithms": [{"label": a, "name": a.split(",")[0].lower(), "eta": r, "local_steps": 5} for a, r in algorithms]
        + [{"label": "ZHJ, step too large", "name": "zhj", "eta": 4.0, "local_steps": 5}],
    }
    folder = RunFolder(path)
    folder.create(config)
    folder.start_rows(["accuracy"])
    counts = np.ceil(draw.dirichlet(np.full(10, 0.2), 30) * draw.lognormal(5, 1, (30, 1)) - 0.5).astype(int)
    folder.write_clients(ClientStats(counts.sum(axis=1), counts, tuple("0123456789")))
    status, models = [], {}
    for label, rate in [*algorithms, ("ZHJ, step too large", -0.2)]:
        floor = 2e-3 if label == "FedAvg" else 1e-12
        size = 0.2 if "top-k" in label else 1.0
        for seed in range(3):
            last = 60 if rate < 0 else 600
            for t in range(0, last + 1, 4):
                gap = max(0.6 * math.exp(-rate * t + 0.3 * draw.normal()), floor * math.exp(0.2 * draw.normal()))
                bytes_each = int(30 * 7850 * 8 * t)
                graph = label == "DEPOSITUM"
                folder.append({
                    "run": "sample", "algorithm": label, "seed": seed, "round": t,
                    "gradients": 150 * t, "proxes": 150 * t,
                    "bytes_up": None if graph else int(bytes_each * size),
                    "bytes_down": None if graph else bytes_each,
                    "bytes_edge": 4 * bytes_each if graph else None,
                    "bytes_best": int(bytes_each * (4 if graph else 0.8 * (1 + size))),
                    "wall_seconds": 0.004 * t * (1 + 0.1 * seed), "objective": 0.42 + gap, "gap": gap,
                    "stationarity": math.sqrt(gap) * 0.3, "consensus": gap * 1e-2 if graph else None,
                    "nonzeros": int(900 + 6900 * min(1, gap)), "accuracy": 0.91 - 0.5 * min(1, gap),
                })  # fmt: skip
            status.append({
                "algorithm": label, "seed": seed, "status": "diverged" if rate < 0 else "finished", "round": last,
                "message": "",
            })  # fmt: skip
            weights = draw.normal(size=7850) * (draw.random(7850) < (1.0 if label == "FedAvg" else 0.12))
            models[f"{label}/{seed}"] = torch.tensor(weights)
    folder.write_status(status)
    folder.write_models(models, [("weight", 0, 7840, (10, 784)), ("bias", 7840, 7850, (10,))])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, nargs="?", help="a report; a made-up one if none is given")
    parser.add_argument("--screenshots", type=Path, default=Path("runs/screenshots"), help="where pictures go")
    arguments = parser.parse_args()
    path = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    if path is None:
        print(MISSING, file=sys.stderr)
        return 2
    arguments.screenshots.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch, browser(path) as driven:
        report = arguments.file
        if report is None:
            from proxfed.report import write_report

            sample_folder(Path(scratch) / "sample")
            report = Path(scratch) / "report.html"
            write_report([Path(scratch) / "sample"], report)
        problems = []
        if report.stat().st_size > LIMIT:
            problems.append(f"the file has {report.stat().st_size:,} bytes; {LIMIT:,} are allowed")
        for screen in SCREENS:
            picture = arguments.screenshots / f"{report.stem}-{screen.name}.png"
            problems += check_screen(driven, report.resolve().as_uri(), screen, picture)
            print(f"{screen.name}: {picture}")
    for problem in problems:
        print(problem, file=sys.stderr)
    print(f"{len(problems)} problems" if problems else "the report is fine")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
