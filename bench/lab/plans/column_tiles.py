# column_tiles.patch (after whole_pairs.patch) against the templates without both: folders "before" and "columns". A CTA serves 32 query rows of a KV head in place of 16, so that groups of 17 to 32, or as many
# drafted tokens times heads, read their keys once. Predictions: docs/lab-notes.md, 2026-12-01, later.
both = "before columns"
ways = [even(132, 4, 8), even(264, 4, 4), one_pass(4, 4)]
for shape in ("32/1/128", "64/2/128", "64/1/128", "128/1/128"):
    add(shape, "1x32768 8x8192 64x4096 64x1024r", ways, both)
add("64/2/64", "8x8192 64x4096", [even(132, 4, 16), even(264, 4, 8), one_pass(4, 8)], both)
add("16/1/128", "8x8192 64x4096", ways, both)
add("32/2/256", "8x8192 64x1024r", [even(132, 4, 8, 16), even(132, 4, 4, 16)], both)
