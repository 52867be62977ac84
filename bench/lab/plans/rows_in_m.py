# Two warpgroups with 64 rows in M (rows_in_m.cuh) against row tiles of 16 rows by warps, where a KV head has more than 32 query rows. Predictions: docs/lab-notes.md, 2026-12-01, night.
ways = [even(132, 4, 8), even(132, 8, 8), one_pass(4, 4), one_pass(8, 8), clusters(16, 8), clusters(16, 4, warps=8), clusters(64, 8), clusters(64, 4, warps=8)]
for shape in ("40/1/128", "64/1/128", "128/1/128"):
    add(shape, "1x32768 8x1024 8x8192 8x32768 64x1024 64x4096 64x1024r 64x4096r", ways)
add("128/2/128", "8x8192 64x4096 64x4096r 256x1024", ways[:4])
add("192/4/128", "1x32768 8x1024 8x8192 64x4096 256x1024", ways)
add("64/1/128", "8x8192 64x4096", ways[:4], page=64)
add("64/1/64", "1x32768 8x8192 64x4096 64x4096r", [even(132, 4, 16), even(132, 8, 16), even(132, 8, 8), one_pass(4, 8), one_pass(8, 16)])
