# One CTA a multiprocessor or two, where heads have windows: all of them (gpt-oss), or half of the KV heads, each with a table of its own.
windowed = dict(window=1, sinks=1)
add("64/8/64", "1x32768 8x8192 64x8192 256x2048", [even(132, 4, 16, window=128), even(264, 4, 12, window=128), even(264, 4, 8, window=128), even(264, 3, 12, window=128)], page=64, spec=windowed)
add("32/8/128", "8x8192 64x8192", [even(132, 4, 8, window=1024), even(264, 4, 4, window=1024)], page=64, spec=windowed)
headwise = [even(ctas, warps, stages, window=window) for window in (512, 4096) for ctas, warps, stages in ((132, 4, 8), (132, 4, 12), (264, 4, 4), (264, 3, 6), (132, 6, 12))]
add("20/4/128", "8x32768 64x32768 8x8192", headwise, page=64, spec=HEADWISE)
