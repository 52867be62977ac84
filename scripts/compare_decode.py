#!/usr/bin/env python3
"""Compares decode results with other kernels' times on the same problems: compare_decode.py [--peers FILE] [--partial] RESULTS.jsonl ...

Prints each common cell, the summary by size class and the cells below their share of the read floor. Exit status 1 where a target is missed, or where more
than 3 % of the peers' cells are not among the results (not with --partial)."""
import argparse
import sys

from decode_results import FLOOR, PEERS, Comparison, below_floor, cell_text, load_peers, load_results


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", nargs="+")
    parser.add_argument("--peers", default=PEERS, help="file of the peers' times")
    parser.add_argument("--partial", action="store_true", help="judge the cells that are there")
    arguments = parser.parse_args()

    about, peers = load_peers(arguments.peers)
    plain, _ = load_results(arguments.results, about["device"])
    compared = Comparison(plain, peers)
    if not compared.ratio:
        sys.exit("no cell is among both the results and the peers' times")
    floor = FLOOR.get(about["device"])
    for key, ratio in compared.ratio.items():
        hq, hkv, dim, page, batch, length, ragged = key
        row, (_, peer, peer_us) = plain[key], peers[key]
        share = f", {row['rate'] / floor:5.1%} of floor" if floor else ""
        print(f"{hq}/{hkv}/{dim} page {page:<3} batch {batch:<3} len {length:<6} {'ragged' if ragged else '':6} {row['median_us']:9.2f} us{share}, {ratio:.2f}x {peer} ({peer_us:.2f} us)")

    print(f"\n{len(compared.ratio)} of {len(peers)} cells, ours over the best peer's:")
    good = arguments.partial or len(compared.ratio) >= 0.97 * len(peers)
    for what, cells, value, target in compared.summary():
        met = value >= target
        good &= met
        print(f"  {what:<11} {cells:4} cells  {value:.3f}  target {target}{'' if met else '  MISSED'}")
    worst = min(compared.ratio, key=compared.ratio.get)
    print(f"  worst: {cell_text(worst)}")
    if floor:
        print("\nBelow their share of the read floor (it is one GPU's; others of the kind read up to 3 % slower):")
        for name, cells, least, below in below_floor(plain, about["device"]):
            good &= not below
            print(f"  {name:<11} {len(below):4} of {cells} below {least:.0%}" + "".join(f"\n    {cell_text(key)}: {share:.1%}" for key, share in below.items()))
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
