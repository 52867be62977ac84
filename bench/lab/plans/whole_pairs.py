# whole_pairs.patch against the templates without it: folders "before" and "whole". Predictions: docs/lab-notes.md, 2026-12-01, later.
both = "before whole"
windowed = dict(window=1, sinks=1)
add("64/8/64", "1x32768 8x8192 64x8192", [even(132, 4, 16, window=128), even(132, 4, 24, window=128), even(264, 4, 12, window=128)], both, page=64, spec=windowed)
add("32/8/128", "1x8192 8x1024 64x1024 8x200", [even(132, 4, 12)], both)
add("16/16/128", "8x200 8x1024r", [even(132, 4, 12)], both)
add("28/4/128", "64x1024r 256x1024r", [even(132, 4, 12), even(264, 4, 4)], both)
add("8/1/128", "64x200 8x8192r", [even(132, 4, 12)], both)
add("64/8/64", "8x200 64x200 64x1024r", [even(132, 4, 24), even(264, 4, 12)], both)
add("20/4/128", "8x32768", [even(132, 4, 8, window=512), even(132, 4, 8, window=4096)], both, page=64, spec=HEADWISE)
