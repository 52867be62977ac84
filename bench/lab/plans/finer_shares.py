# Does an even share among more CTAs than stand on the device at once, which takes work as places become free, beat one whose CTAs all run? Prediction: ragged batches of many pairs 3 to 5 %
# (one pass, which does so, is that much faster on 28/4 heads, 256 x 2048 ragged, but cannot be trusted with one long sequence), and H200s with slow memory 2 %.
ways = [even(132, 4, 12), even(264, 4, 4), even(396, 4, 4), even(528, 4, 4), even(1056, 4, 4), even(264, 3, 6), even(528, 3, 6), one_pass(4, 4)]
add("28/4/128", "8x8192r 64x1024r 64x4096r 64x8192r 256x1024r 256x2048r 256x1024 64x8192", ways)
add("32/8/128", "64x1024r 256x2048r 64x4096r 8x32768 64x8192 256x2048", ways)
add("16/16/128", "8x1024r 64x1024r 64x4096r 256x2048r 8x32768 64x8192", ways)
add("8/1/128", "64x1024r 256x1024r 256x2048r 8x32768", ways)
add("8/4/256", "64x1024r 256x1024r 256x2048", [even(132, 4, 12, 16), even(264, 4, 4, 16), even(528, 4, 4, 16), one_pass(4, 4, 16)])
add("64/8/64", "64x1024r 256x1024r 64x4096r 64x8192 256x2048", [even(132, 4, 24), even(132, 4, 16), even(264, 4, 12), even(396, 4, 12), even(528, 4, 12), one_pass(4, 12)])
