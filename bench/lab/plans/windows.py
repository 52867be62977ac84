# One CTA a multiprocessor or two, where heads have windows: all of them (gpt-oss), or half of the KV heads, each with a table of its own; pages that hold tokens one after the other, or heads.
windowed = dict(window=1, sinks=1)
add("64/8/64", "1x32768 8x8192 64x8192 256x2048", [even(132, 4, 16, window=128), even(264, 4, 12, window=128)], page=64, spec=windowed)
ways = [even(132, 4, 8), even(264, 4, 4)]
for hnd in (False, True):
    add("20/4/128", "8x32768 64x32768 8x8192", ways, page=64, hnd=hnd)
    add("20/4/128", "8x32768 64x32768 8x8192", [even(ctas, warps, stages, window=window) for window in (512, 4096) for ctas, warps, stages in ((132, 4, 8), (264, 4, 4))], page=64, spec=HEADWISE, hnd=hnd)
