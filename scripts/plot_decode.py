#!/usr/bin/env python3
"""Draws decode results and rewrites the tables of the page about them: plot_decode.py [--out docs/decode] [--doc docs/decode.md] RESULTS.jsonl ...

Writes OUT/fraction.svg (share of the read floor over bytes of KV) and OUT/schedules.svg (what won where). In the page, what stands between
<!-- NAME: begin --> and <!-- NAME: end --> is replaced; text outside stays. Only lines of the peers' device count; of several lines of one
cell the fastest."""
import argparse
import math
import os
import re
from html import escape

from decode_results import FLOOR, PEERS, Comparison, load_peers, load_results, schedule_of, size_text, target_of

OURS, PEER, GRID, TEXT = "#0b6e99", "#c77d2b", "#dddddd", "#222222"
COLOURS = {"V1": "#b5d4e9", "V2 merge kernel": "#e8d5a9", "V2 last CTA": "#f0b67f", "V2 cluster": "#b9dfb4", "V2 even share": "#d3bfe4"}


class Svg:
    def __init__(self, width, height):
        self.head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" font-family="sans-serif" font-size="12" fill="{TEXT}">'
        self.parts = [f'<rect width="{width}" height="{height}" fill="white"/>']

    def line(self, x1, y1, x2, y2, colour=GRID):
        self.parts.append(f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}"/>')

    def text(self, x, y, text, anchor="start", size=12, weight="normal"):
        self.parts.append(f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" font-weight="{weight}">{escape(text)}</text>')

    def dot(self, x, y, colour, hollow, note):
        fill = f'fill="white" stroke="{colour}" stroke-width="1.5"' if hollow else f'fill="{colour}"'
        self.parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.2" {fill} opacity="0.8"><title>{escape(note)}</title></circle>')

    def box(self, x, y, width, height, colour, note=""):
        self.parts.append(f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{colour}" stroke="white"><title>{escape(note)}</title></rect>')

    def write(self, path):
        with open(path, "w", encoding="utf-8") as file:
            file.write("\n".join([self.head, *self.parts, "</svg>"]) + "\n")


def percent(share):
    return f"{100 * share:.0f} %"


def cell_text(key):
    hq, hkv, dim, page, batch, length, ragged = key
    return f"{hq}/{hkv}/{dim}, page {page}, {batch} × {size_text(length)}{' ragged' if ragged else ''}"


def draw_fractions(path, plain, peers, floor):
    left, top, width, height = 60, 40, 760, 400
    svg = Svg(left + width + 20, top + height + 60)
    sizes = [row["kv_bytes"] for row in plain.values()]
    low, high = math.floor(math.log10(min(sizes))), math.ceil(math.log10(max(sizes)))
    at_x = lambda size: left + width * (math.log10(size) - low) / (high - low)
    at_y = lambda share: top + height * (1 - share)
    for decade in range(low, high + 1):
        svg.line(at_x(10**decade), top, at_x(10**decade), top + height)
        name = f"{10 ** (decade - 9):g} GB" if decade >= 9 else f"{10 ** (decade - 6):g} MB"
        svg.text(at_x(10**decade), top + height + 18, name, "middle")
    for tenth in range(0, 11, 2):
        svg.line(left, at_y(tenth / 10), left + width, at_y(tenth / 10))
        svg.text(left - 8, at_y(tenth / 10) + 4, f"{tenth * 10} %", "end")
    svg.text(left + width / 2, top + height + 42, "bytes of K and V that a launch must read", "middle")
    svg.text(left, 22, "Share of the read floor", weight="bold")
    for i, (name, colour, hollow) in enumerate([("pagetune", OURS, False), ("best peer of the cell", PEER, False), ("ragged", OURS, True)]):
        svg.dot(left + 260 + 170 * i, 18, colour, hollow, "")
        svg.text(left + 270 + 170 * i, 22, name)
    for key, row in sorted(plain.items()):
        if key in peers:
            share = peers[key][0] / floor
            svg.dot(at_x(row["kv_bytes"]), at_y(min(share, 1)), PEER, key[6], f"{cell_text(key)}: {peers[key][1]} {peers[key][2]:.1f} µs, {percent(share)}")
    for key, row in sorted(plain.items()):
        share = row["rate"] / floor
        svg.dot(at_x(row["kv_bytes"]), at_y(min(share, 1)), OURS, key[6], f"{cell_text(key)}: {row['median_us']:.1f} µs, {percent(share)}")
    svg.write(path)


def draw_schedules(path, plain):
    uniform = {key: row for key, row in plain.items() if not key[6]}
    shapes = sorted({key[:3] for key in uniform}, key=lambda shape: (shape[2], -shape[0]))
    pages = sorted({key[3] for key in uniform})
    batches, lengths = sorted({key[4] for key in uniform}), sorted({key[5] for key in uniform})
    cell_w, cell_h, left, top = 66, 32, 46, 64
    panel_w, panel_h = left + cell_w * len(lengths) + 16, 50 + cell_h * len(batches)
    svg = Svg(panel_w * len(pages) + 10, top + panel_h * len(shapes))
    svg.text(10, 22, "The schedule that won, by batch (down) and length (across)", weight="bold")
    for i, (name, colour) in enumerate(COLOURS.items()):
        svg.box(10 + 130 * i, 32, 14, 14, colour)
        svg.text(28 + 130 * i, 44, name)
    for r, shape in enumerate(shapes):
        for c, page in enumerate(pages):
            x0, y0 = left + panel_w * c, top + panel_h * r + 32
            svg.text(x0, y0 - 18, f"{shape[0]}/{shape[1]}/{shape[2]}, page {page}", weight="bold")
            for k, length in enumerate(lengths):
                svg.text(x0 + cell_w * (k + 0.5), y0 - 4, size_text(length), "middle", 11)
            for k, batch in enumerate(batches):
                svg.text(x0 - 6, y0 + cell_h * (k + 0.5) + 4, str(batch), "end", 11)
            for key, row in sorted(uniform.items()):
                if key[:3] != shape or key[3] != page:
                    continue
                kind, detail = schedule_of(row)
                x, y = x0 + cell_w * lengths.index(key[5]), y0 + cell_h * batches.index(key[4])
                svg.box(x, y, cell_w, cell_h, COLOURS[kind], f"{cell_text(key)}: {kind} {detail}, {row['config']}")
                svg.text(x + cell_w / 2, y + cell_h / 2 + 4, detail or kind, "middle", 11)
    svg.write(path)


def table(head, rows):
    return "\n".join(["| " + " | ".join(head) + " |", "|" + "---|" * len(head), *("| " + " | ".join(row) + " |" for row in rows)])


def problem_text(batch, length, ragged):
    return f"{batch} × {size_text(length)}{' ragged' if ragged else ''}"


def cells_section(plain, peers, floor):
    parts = []
    for shape in sorted({key[:3] for key in plain}, key=lambda shape: (shape[2] != 128, -shape[0], shape[1])):
        mine = {key: row for key, row in plain.items() if key[:3] == shape}
        pages = sorted({key[3] for key in mine})
        rows = []
        for problem in sorted({key[4:] for key in mine}, key=lambda p: (p[2], p[0], p[1])):
            cells = []
            for page in pages:
                key = (*shape, page, *problem)
                row = mine.get(key)
                text = f"{row['median_us']:.1f} ({percent(row['rate'] / floor)})" if row else "–"
                if row and key in peers:
                    text += f" {row['rate'] / peers[key][0]:.2f}×"
                cells.append(text)
            floor_us = next(row["kv_bytes"] / floor for key, row in mine.items() if key[4:] == problem)
            rows.append([problem_text(*problem), f"{floor_us:.1f}", *cells])
        parts.append(f"{shape[0]}/{shape[1]} heads, {shape[2]} dims:\n\n" + table(["batch × length", "floor µs", *(f"page {page}" for page in pages)], rows))
    return "\n\n".join(parts)


def summary_section(compared, peers):
    if not compared.ratio:
        return "No cell has a peer's time."
    rows = [[what, str(cells), f"{value:.2f}×", f"{target}×", "yes" if value >= target else "**no**"] for what, cells, value, target in compared.summary()]
    return f"{len(compared.ratio)} of the peers' {len(peers)} cells:\n\n" + table(["cells", "number", "ours / best peer", "target", "met"], rows)


def misses_section(compared, plain, peers, floor):
    rows = []
    for key, ratio in sorted(compared.ratio.items(), key=lambda item: item[1]):
        want = target_of(compared.size[key])
        if ratio < want:
            row = plain[key]
            rows.append([cell_text(key), f"{row['median_us']:.1f}", percent(row["rate"] / floor), f"{ratio:.2f}×", f"{want}×", peers[key][1], " ".join(schedule_of(row)).strip()])
    if not rows:
        return "No compared cell is below its class's target."
    most = 40
    text = f"{len(rows)} of {len(compared.ratio)} compared cells are below the target that the geometric mean of their size class has to meet" + (f"; the {most} furthest below:" if len(rows) > most else ":")
    return text + "\n\n" + table(["cell", "µs", "of floor", "ours / peer", "class target", "peer", "schedule"], rows[:most])


def best_by(rows, key_of):
    best = {}
    for row in rows:
        key = key_of(row)
        if key not in best or row["median_us"] < best[key]["median_us"]:
            best[key] = row
    return best


def headwise_section(others, floor):
    names = ["head-wise", "head-wise, recycling off", "one table without windows", "two passes"]
    runs, current = [], {}  # the lines of one comparison follow one another
    for row in others:
        if row["case"] not in names:
            continue
        if row["case"] == names[0] and any(name in current for name in names[1:]):
            runs.append(current)
            current = {}
        if row["case"] not in current or row["median_us"] < current[row["case"]]["median_us"]:
            current[row["case"]] = row
    runs.append(current)
    rows = []
    for run in runs:
        if names[0] not in run:
            continue
        ours, off, uniform, passes = (run.get(name) for name in names)
        beside = lambda row: f"{row['median_us']:.1f} ({row['median_us'] / ours['median_us']:.2f}×)" if row else "not measured"
        rows.append([str(ours["page"]), problem_text(ours["batch"], ours["len"], False), str(ours["window"]), f"{ours['kv_bytes'] / floor:.1f}", f"{ours['median_us']:.1f} ({percent(ours['rate'] / floor)})",
                     f"{off['median_us']:.1f}" if off else "not measured", beside(uniform), beside(passes)])
    if not rows:
        return "Not measured yet."
    return table(["page", "batch × length", "window", "floor µs", "head-wise", "recycling off", "one table", "two passes"], rows)


def pairs_section(others, first, second, head):
    key_of = lambda row: (row["hq"], row["hkv"], row["dk"], row["page"], row["batch"], row["len"])
    a, b = (best_by([row for row in others if row["case"] == name], key_of) for name in (first, second))
    rows = [[f"{key[0]}/{key[1]}/{key[2]}, page {key[3]}, {problem_text(key[4], key[5], False)}", f"{a[key]['median_us']:.1f}", f"{b[key]['median_us']:.1f}", f"{a[key]['median_us'] / b[key]['median_us']:.2f}"] for key in sorted(a.keys() & b.keys())]
    return table(["problem", *head], rows) if rows else "Not measured yet."


def rewrite(path, sections):
    with open(path, encoding="utf-8") as file:
        text = file.read()
    for name, body in sections.items():
        pattern = re.compile(rf"(<!-- {name}: begin -->\n).*?(<!-- {name}: end -->)", re.S)
        if not pattern.search(text):
            raise SystemExit(f"{path} has no '<!-- {name}: begin -->' … '<!-- {name}: end -->'")
        text = pattern.sub(lambda match: match.group(1) + body + "\n" + match.group(2), text)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", nargs="+")
    parser.add_argument("--peers", default=PEERS, help="file of the peers' times")
    parser.add_argument("--out", default=os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "docs", "decode"), help="folder of the SVGs")
    parser.add_argument("--doc", help="page whose tables are rewritten")
    arguments = parser.parse_args()

    about, peers = load_peers(arguments.peers)
    device = about["device"]
    floor = FLOOR[device]
    plain, others = load_results(arguments.results, device)
    if not plain:
        raise SystemExit(f"no plain decode line of {device} in {', '.join(arguments.results)}")
    os.makedirs(arguments.out, exist_ok=True)
    draw_fractions(os.path.join(arguments.out, "fraction.svg"), plain, peers, floor)
    draw_schedules(os.path.join(arguments.out, "schedules.svg"), plain)
    if not arguments.doc:
        return
    compared = Comparison(plain, peers)
    commits = sorted({row["commit"] for row in [*plain.values(), *others]})
    sections = {
        "source": f"{device}, commit{'s' if len(commits) > 1 else ''} {', '.join(commits)}; from {', '.join(f'`{os.path.basename(path)}`' for path in arguments.results)}.",
        "summary": summary_section(compared, peers),
        "cells": cells_section(plain, peers, floor),
        "misses": misses_section(compared, plain, peers, floor),
        "headwise": headwise_section(others, floor),
        "gpt-oss": pairs_section(others, "gpt-oss, full layer", "gpt-oss, windowed layer", ["full µs", "windowed µs", "full / windowed"]),
        "long-graph": pairs_section(others, "graph for 131072", "graph for 200", ["graph for 131,072 µs", "graph for 200 µs", "ratio"]),
    }
    rewrite(arguments.doc, sections)


if __name__ == "__main__":
    main()
