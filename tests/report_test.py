"""A report of known winners in a browser: report_test.py PAGETUNE REPORT_STORE TABLE.json…

Catches: text of data that becomes markup, anything that is loaded from elsewhere, script errors, a page wider than a phone, cells or numbers that are
missing or wrong, bytes that differ between two runs. With REPORT_SCREENSHOTS=DIR the pictures stay there to be looked at.
"""
import html
import html.parser
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

SIZES = {"phone": (390, 844), "desktop": (1280, 900)}
HOSTILE = "onerror="


def run(*command, **options):
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, **options)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done


def expect(ok, what):
    if not ok:
        sys.exit(f"failed: {what}")


class Page(html.parser.HTMLParser):
    """Elements as (tag, attributes); the text of headings; of each table the texts of its rows' cells."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.tables, self.headings, self.open = [], [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.elements.append((tag, attributes))
        if tag == "tbody":
            self.tables.append([])
        elif tag == "tr" and "tbody" in self.open:
            self.tables[-1].append([])
        elif tag == "td":
            self.tables[-1][-1].append("")
        elif tag in ("h1", "h2", "h3"):
            self.headings.append("")
        self.open.append(tag)

    def handle_endtag(self, tag):
        while self.open and self.open.pop() != tag:
            pass

    def handle_data(self, data):
        if "td" in self.open[-3:]:
            self.tables[-1][-1][-1] += data
        if self.open and self.open[-1] in ("h1", "h2", "h3"):
            self.headings[-1] += data

    def count(self, tag, **wanted):
        return sum(1 for name, attributes in self.elements if name == tag and all(value in attributes.get(key, "").split() for key, value in wanted.items()))


def chromium(folder, *arguments):
    """No network: every name fails to resolve, so that whatever asks for one is seen in the log."""
    program = shutil.which("chromium")
    expect(program, "chromium is not installed (Debian: apt install chromium); scripts/install.sh installs it")
    done = run(program, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars", "--enable-logging=stderr", "--host-resolver-rules=MAP * ~NOTFOUND",
               f"--user-data-dir={folder}/profile", "--virtual-time-budget=5000", *arguments, env={**os.environ, "HOME": str(folder)})
    console = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    expect(not console, "the page wrote to the console:\n" + "\n".join(console))
    return done.stdout


# Runs in the page itself. A window cannot be made as narrow as a phone, a frame can: the page is then a frame of this size.
MEASURE = """
<script>addEventListener("load", () => {
  const cell = document.querySelector(".cell");
  cell.dispatchEvent(new Event("click"));
  const heading = document.querySelectorAll(".winners th")[4];
  heading.click();
  const medians = [...document.querySelector(".winners").tBodies[0].rows].map((row) => Number(row.cells[4].dataset.key));
  const facts = {
    width: innerWidth, scroll: document.documentElement.scrollWidth, title: document.title, detail: document.querySelector(".detail").textContent,
    wanted: cell.dataset.detail, chosen: document.querySelectorAll(".chosen").length, sorted: medians.every((us, i) => i === 0 || us >= medians[i - 1]), medians: medians.length,
    loaded: performance.getEntriesByType("resource").map((one) => one.name),
    outside: [...document.querySelectorAll("main *")].filter((one) => !one.closest(".box") && one.getBoundingClientRect().right > innerWidth + 1).map((one) => one.tagName + "." + one.className),
  };
  (parent === window ? document : parent.document).documentElement.dataset.facts = JSON.stringify(facts);
});</script>
"""


def measured(folder, page, width, height):
    probe = page.replace("</body>", MEASURE + "</body>")
    wrapper = folder / "wrapper.html"
    wrapper.write_text(f"<!DOCTYPE html><body style='margin:0'><iframe style='border:0;width:{width}px;height:{height}px' srcdoc=\"{html.escape(probe, quote=True)}\"></iframe>", encoding="utf-8")
    dom = chromium(folder, "--dump-dom", f"--window-size={width},{height}", wrapper.as_uri())
    facts = re.search(r'data-facts="([^"]*)"', dom)
    expect(facts, f"the page's script did not run at {width} x {height}:\n{dom[:400]}")
    return json.loads(html.unescape(facts.group(1)))


def main():
    pagetune, make_store, *tables = sys.argv[1:]
    winners = [{name: row for name, row in json.loads(pathlib.Path(table).read_text(encoding="utf-8")).items() if name != "_metadata"} for table in tables]
    buckets = sum(map(len, winners))
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        store = folder / "store"
        run(make_store, store, *tables)

        def report(name, *arguments):
            run(pagetune, "report", *arguments, "--store", store, "-o", folder / name, env={**os.environ, "PAGETUNE_CACHE_DIR": str(folder / "unused")})
            return (folder / name).read_text(encoding="utf-8")

        text = report("all.html", "--all")
        expect(text == report("again.html", "--all"), "two runs over one store gave different bytes")
        known = report("known.html", "--all", "--device", "nvidia h200")
        model = report("model.html", "llama-3.1-8b", "--device", "h200", "--page-size", "16", "--batch", "1,8")
        expect(not (folder / "unused").exists(), "a report of another store made the default one")

        page, device = Page(text), Page(known)
        cells = lambda of: of.count("g", **{"class": "cell"})
        expect(cells(page) == 2 * 3 * buckets, f"{cells(page)} cells: three maps of {buckets} buckets and two devices have {2 * 3 * buckets}")
        expect(cells(device) == 3 * buckets, f"--device: {cells(device)} cells")
        wanted = sum(1 for name in winners[0] if name.startswith(("1x", "8x")))
        expect(cells(Page(model)) == 3 * wanted, f"MODEL, --page-size and --batch: {cells(Page(model))} cells, not {3 * wanted}")
        expect("layers 0-31" in model and "<h1>llama-3.1-8b</h1>" in model, "the model's name or its layers are missing")

        by_bucket = [{f"{row[0]}x{row[1]}": row for row in table} for table in device.tables]
        expect(sorted(map(len, by_bucket)) == sorted(map(len, winners)), f"tables of {[len(table) for table in by_bucket]} winners")
        for table in winners:
            # Kernels stand in the order of their keys: which table is this one, its times tell.
            group = next((group for group in by_bucket if all(name in group and group[name][4] == f"{row['median_us']:.2f}" for name, row in table.items())), None)
            expect(group, "no table of the page has the medians of one of the stored tables")
            for name, row in table.items():
                shown = group[name]
                want = [f"{row['ci_low_us']:.2f} to {row['ci_high_us']:.2f}", str(row["samples"]), f"{100 * row['floor_us'] / row['median_us']:.1f} %", f"{row['default_us']:.2f}"]
                expect(shown[5:9] == want, f"bucket {name} shows {shown[5:9]}, not {want}")
                gap = f"{100 * (row['runner_up_us'] / row['median_us'] - 1):+.1f} %" if row["runner_up_us"] > 0 else "–"
                expect([shown[10], *shown[12:]] == [str(row["tied"]), gap, row["reason"], f"{row['error']:.1e}"], f"bucket {name} shows {shown[10:]}")
                schedule = "V1" if row["config"]["VARIANT"] == 1 else f"V2 {row['config']['CTA_QUARTERS']}/4" if row["config"]["CTA_QUARTERS"] else f"V2 ×{row['config']['NUM_SPLITS']}"
                expect(shown[2] == schedule, f"bucket {name}: schedule {shown[2]}, not {schedule}")
        expect(any(HOSTILE in heading for heading in page.headings), "the hostile device is missing")
        expect(page.count("script") == 1 and page.count("img") == 0, "a device's name or a reason became markup")
        outside = re.sub(r"http://example\.invalid/x\.js&quot;", "", text)
        expect(not re.search(r"https?://|url\(|@import", outside), "the page refers to something outside")

        for name, (width, height) in SIZES.items():
            facts = measured(folder, text, width, height)
            expect(facts["width"] == width, f"the page was {facts['width']} wide, not {width}")
            expect(facts["scroll"] <= facts["width"], f"at {width} the page is {facts['scroll']} wide")
            expect(not facts["outside"], f"at {width} these stick out: {facts['outside'][:5]}")
            expect(facts["detail"] == facts["wanted"] and facts["chosen"] >= 2, f"a click on a cell shows '{facts['detail']}' and marks {facts['chosen']}")
            expect(facts["sorted"] and facts["medians"] > 1, "a click on a heading does not sort")
            expect("taken" not in facts["title"], "the hostile name's script ran")
            expect(not facts["loaded"], f"the page loaded {facts['loaded']}")
            shots = pathlib.Path(os.environ.get("REPORT_SCREENSHOTS", folder))
            shot = shots / f"{name}.png"
            chromium(folder, f"--screenshot={shot}", f"--window-size={width},{height}", (folder / "all.html").as_uri())
            expect(shot.stat().st_size > 10_000, f"{shot} is empty")
    print(f"{buckets} buckets of {len(tables)} kernels at {len(SIZES)} sizes")


main()
