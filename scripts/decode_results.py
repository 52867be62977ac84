"""Decode results and other kernels' times, as compare_decode.py and plot_decode.py read them. Rates are bytes of K and V a microsecond: they stay
comparable where the lengths of a ragged batch differ."""
import json
import math
import os

PEERS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "bench", "peers", "nvidia-h200", "decode.jsonl")
FLOOR = {"NVIDIA H200": 4.55e6}  # bytes a microsecond of a pure read of 1 GiB and more, measured
# name, bytes from, bytes below, least geometric mean of ours over the best peer's
CLASSES = [("< 10 MB", 0, 1e7, 1.35), ("10–100 MB", 1e7, 1e8, 1.3), ("100–500 MB", 1e8, 5e8, 1.1), ("≥ 0.5 GB", 5e8, math.inf, 1.0)]
ALL, RAGGED, WORST = 1.15, 1.2, 0.97
# name, bytes from, bytes below, least share of the read floor, for batches of one length
SHARES = [("≥ 1 GB", 1e9, math.inf, 0.97), ("0.5–1 GB", 5e8, 1e9, 0.93), ("100–500 MB", 1e8, 5e8, 0.85)]


def lines(path):
    with open(path, encoding="utf-8", errors="replace") as file:
        for line in file:
            if line.startswith("{"):
                yield json.loads(line)


def geomean(values):
    return math.exp(sum(map(math.log, values)) / len(values)) if values else math.nan


def target_of(kv_bytes):
    return next(target for _, low, high, target in CLASSES if low <= kv_bytes < high)


def load_peers(path):
    """(about, {cell: (rate, peer, us)} with the fastest of each cell)"""
    about, best = {}, {}
    for row in lines(path):
        if "peer" not in row:
            about = row
            continue
        key = (row["hq"], row["hkv"], row["d"], row["page"], row["batch"], row["len"], bool(row["ragged"]))
        best[key] = max(best.get(key, (0,)), (row["kv_bytes"] / row["median_us"], row["peer"], row["median_us"]))
    return about, best


def cell_of(row):
    return (row["hq"], row["hkv"], row["dk"], row["page"], row["batch"], row["len"], bool(row.get("ragged")))


def load_results(paths, device):
    """({cell: fastest plain line}, [other lines]) of the device: plain means no windows, sinks or other cases."""
    plain, others = {}, []
    for path in paths:
        for row in lines(path):
            if row.get("bench") != "decode" or row.get("device") != device:
                continue
            row["rate"] = row["kv_bytes"] / row["median_us"]
            if row.get("case"):
                others.append(row)
                continue
            if row["headwise"] or row["window"] or row["q_len"] != 1 or row["layout"] != "nhd" or row["dk"] != row["dv"] or (row["q_dtype"], row["kv_dtype"]) != ("bf16", "bf16"):
                continue
            key = cell_of(row)
            if key not in plain or row["rate"] > plain[key]["rate"]:
                plain[key] = row
    return plain, others


def size_text(tokens):
    return f"{tokens // 1024}k" if tokens % 1024 == 0 else str(tokens)


def schedule_of(row):
    """(kind, detail) of the config of a line."""
    config = json.loads(row["config"])
    if row["variant"] == "V1":
        return "V1", ""
    if config.get("CTA_QUARTERS", 0):
        return "V2 even share", f"{config['CTA_QUARTERS'] / 4:g} per SM"
    kind = {0: "V2 merge kernel", 1: "V2 last CTA", 2: "V2 cluster"}[config.get("MERGE", 0)]
    return kind, f"× {config['NUM_SPLITS']}"


def below_floor(plain, device):
    """[(class, cells, least share, {cell: share of the cells below it})]"""
    rows = []
    for name, low, high, least in SHARES:
        shares = {key: row["rate"] / FLOOR[device] for key, row in sorted(plain.items()) if low <= row["kv_bytes"] < high and not key[6]}
        rows.append((name, len(shares), least, {key: share for key, share in shares.items() if share < least}))
    return rows


def cell_text(key):
    hq, hkv, dim, page, batch, length, ragged = key
    return f"{hq}/{hkv}/{dim} page {page} {batch} x {size_text(length)}{' ragged' if ragged else ''}"


class Comparison:
    """Ours against the fastest peer, over the cells that both have."""

    def __init__(self, plain, peers):
        self.ratio = {key: plain[key]["rate"] / peers[key][0] for key in sorted(plain.keys() & peers.keys())}
        self.size = {key: plain[key]["kv_bytes"] for key in self.ratio}

    def summary(self):
        """[(what, cells, value, target)]: geometric means, and the worst cell."""
        rows = [("all cells", len(self.ratio), geomean(list(self.ratio.values())), ALL)]
        for name, low, high, target in CLASSES:
            values = [ratio for key, ratio in self.ratio.items() if low <= self.size[key] < high]
            if values:
                rows.append((name, len(values), geomean(values), target))
        values = [ratio for key, ratio in self.ratio.items() if key[6]]
        if values:
            rows.append(("ragged", len(values), geomean(values), RAGGED))
        rows.append(("worst cell", 1, min(self.ratio.values()), WORST))
        return rows
