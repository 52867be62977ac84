// How CUDA kernels spread tiles over CTAs, in the template's own code on the host: every tile once, no CTA more than one over the average of those that have any.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "codegen/launch_plan.hpp"
#include "schedule_host.hpp"

namespace pagetune::testing_support {
namespace {

// Lengths and windows of a batch, and the parameters that point to them.
struct Batch {
  std::vector<int> lens, windows;
  pt_decode_params params{};

  Batch(const Schedule& schedule, std::vector<int> lens_of, std::vector<int> windows_of, int ctas) : lens(std::move(lens_of)), windows(std::move(windows_of)) {
    params.batch = static_cast<int>(lens.size()) / (schedule.heads_differ ? schedule.kv_heads : 1);
    params.seq_lens = lens.data();
    params.seq_lens_stride_seq = schedule.kv_heads;
    params.seq_lens_stride_head = 1;
    params.block_table_width = 1 << 20;
    params.window = windows.data();
    params.sink_tokens = 40;
    params.num_ctas = ctas;
    if (ctas > 0) ShareFit(params.batch, schedule.kv_heads * schedule.row_tiles, ctas, !schedule.heads_differ).tell(params);
  }
};

unsigned next_random() {
  static uint64_t state = 1;
  state = state * 6364136223846793005ULL + 1442695040888963407ULL;
  return static_cast<unsigned>(state >> 33);
}

// The tiles of all pairs in their order, or of those of one lane, a (KV head, row tile), each pair's behind `opening` empty places, whose tile is -1.
struct Place {
  int sequence, head, row_tile, tile, line;
};
std::vector<Place> line_of(const Schedule& schedule, const pt_decode_params& p, int lanes, int lane, int opening) {
  std::vector<Place> line;
  for (int b = 0; b < p.batch; ++b) {
    for (int h = 0; h < schedule.kv_heads; ++h) {
      for (int r = 0; r < schedule.row_tiles; ++r) {
        if (lanes > 1 && h * schedule.row_tiles + r != lane) continue;
        const int begin = static_cast<int>(line.size()) + opening;
        for (int t = 0; t < opening; ++t) line.push_back({b, h, r, -1, begin});
        for (int t = 0; t < schedule.tiles_of(p, b, h); ++t) line.push_back({b, h, r, t, begin});
      }
    }
  }
  return line;
}

// How many tiles the pairs have: all together, and one at least and at most.
struct Counts {
  int total = 0, least = 1 << 30, most = 0;
};
Counts counts_of(const std::vector<Place>& line) {
  Counts counts;
  for (size_t at = 0, end; at < line.size(); at = end) {
    for (end = at + 1; end < line.size() && line[end].tile > 0; ++end) {}
    const int tiles = static_cast<int>(end - at);
    counts.total += tiles;
    counts.least = std::min(counts.least, tiles);
    counts.most = std::max(counts.most, tiles);
  }
  return counts;
}

// Where a range that would end at `cut` does: at the first of the pairs that begin up to `near` tiles before, else at its pair's end if that is as near.
size_t moved(const std::vector<Place>& line, size_t cut, int opening, int near) {
  if (cut >= line.size()) return line.size();
  const auto begins = [&](size_t at) { return at == static_cast<size_t>(line[at].line - opening); };
  const size_t reach = static_cast<size_t>(opening) + static_cast<size_t>(near);
  for (size_t at = cut > reach ? cut - reach : 0; at <= cut; ++at) {
    if (begins(at)) return at;
  }
  size_t end = cut + 1;
  while (end < line.size() && !begins(end)) ++end;
  return end - cut <= static_cast<size_t>(near) ? end : cut;
}

// The tiles are one line that all CTAs share, or one for each lane, shared by as many CTAs as there are ranges, but not by more than give each a pair or
// two tiles for each warp; CTAs left over rest. A range that ends within one pair and goes on in the next is spared where nobody gets more than a tile for each warp over the average
// for it, or fewer tiles than two parts need: ranges then take whole pairs, or as many of them a pair, if all have as many tiles. Else the places before a pair's tiles count as tiles,
// where pairs differ, and a range's ends move to those of pairs that are near.
void expect_even(const Schedule& schedule, const Batch& batch) {
  const pt_decode_params& p = batch.params;
  const int row_pairs = schedule.kv_heads * schedule.row_tiles;
  const HostShares shares = schedule.walk(p, 0).shares[0];
  const int lanes = shares.lanes;
  ASSERT_TRUE(lanes == 1 || lanes == row_pairs);
  const Counts counts = counts_of(line_of(schedule, p, lanes, 0, 0));
  const int each = counts.least == counts.most ? counts.most : 0, opening = each > 0 ? 0 : schedule.opening, fewest = schedule.least_tiles;
  const int pairs = p.batch * row_pairs / lanes, all = p.num_ctas / lanes, places = counts.total + opening * pairs;
  int ranges = std::min(all, std::max(std::min((places + fewest - 1) / fewest, places / (opening + 1)), pairs)), least = places / ranges, most = (places + ranges - 1) / ranges;
  const int whole = (pairs + all - 1) / all, parts = each > 0 ? std::max(std::min(all / pairs, each / fewest), 1) : 1;
  const int longest = parts == 1 ? whole * counts.most : (each + parts - 1) / parts;
  const bool spared = longest < 2 * fewest || int64_t{longest - schedule.num_warps} * ranges <= counts.total;
  ASSERT_EQ(shares.whole, spared && parts == 1 ? whole : 0);
  if (shares.whole > 0) {
    ranges = (pairs + whole - 1) / whole;
    least = 1;
    most = longest;
  } else if (spared) {
    ranges = pairs * parts;
    least = each / parts;
    most = longest;
  }
  const int near = spared ? 0 : schedule.num_warps;
  std::vector<std::vector<Place>> lines;
  for (int lane = 0; lane < lanes; ++lane) lines.push_back(line_of(schedule, p, lanes, lane, shares.whole > 0 ? 0 : opening));
  std::map<std::tuple<int, int, int>, std::vector<int64_t>> found;
  std::set<int64_t> taken;
  std::vector<size_t> ends(static_cast<size_t>(lanes), 0);
  for (int cta = 0; cta < p.num_ctas; ++cta) {
    const int range = cta / lanes;
    const HostWalk walk = schedule.walk(p, cta);
    if (range >= ranges) {
      ASSERT_TRUE(walk.segments[0].empty());
      continue;
    }
    const HostShares mine = walk.shares[0];
    const std::vector<Place>& line = lines[static_cast<size_t>(cta % lanes)];
    size_t& at = ends[static_cast<size_t>(cta % lanes)];
    size_t end = at;
    if (mine.whole > 0) {
      for (int pair = 0; pair < whole && end < line.size(); ++pair)
        for (++end; end < line.size() && line[end].tile > 0;) ++end;
      ASSERT_TRUE(end - at >= static_cast<size_t>(least) && end - at <= static_cast<size_t>(most));
    } else {
      int claimed = 0;
      const int begin = schedule.begin(mine, range, claimed);
      ASSERT_TRUE(claimed == least || claimed == most) << "CTA " << cta << " would have " << claimed << " places, it should be " << least << " to " << most;
      ASSERT_EQ(at, moved(line, static_cast<size_t>(begin), opening, near)) << "range " << range << ", cut at " << begin;
      end = moved(line, static_cast<size_t>(begin) + static_cast<size_t>(claimed), opening, near);
    }
    const auto skip = [&] {  // an opening
      while (at < end && line[at].tile < 0) ++at;
    };
    for (const HostSegment& s : walk.segments[0]) {
      ASSERT_GT(s.count, 0);
      ASSERT_TRUE(!spared || s.count == s.tiles || walk.segments[0].size() == 1);
      skip();
      if (s.count == s.tiles) {  // no part of anything
        for (int t = 0; t < s.count; ++t, ++at) {
          const Place& expected = line[at];
          ASSERT_TRUE(at < end && s.sequence == expected.sequence && s.head == expected.head && s.row_tile == expected.row_tile && t == expected.tile) << "CTA " << cta << ", tile " << at << " of the line";
        }
        continue;
      }
      const HostPart part = schedule.part(mine, s);
      const int count = static_cast<int>(part.rows.size());
      ASSERT_TRUE(0 <= part.part && part.part < count && (part.part == 0) == (s.first == 0) && (part.part == count - 1) == (s.first + s.count == s.tiles))
          << "range " << range << " has tiles " << s.first << " to " << s.first + s.count << " of " << s.tiles << ", said to be part " << part.part << " of " << count;
      if (count > 1) {  // all that hold parts of a pair look for them at the same rows, and nobody else leaves anything there
        const auto [known, is_new] = found.try_emplace({s.sequence, s.head, s.row_tile}, part.rows);
        ASSERT_EQ(known->second, part.rows);
        const int64_t row = part.rows[static_cast<size_t>(part.part)];
        ASSERT_TRUE(row >= 0 && row + schedule.rows_per_cta <= int64_t{2} * schedule.rows_per_cta * p.num_ctas) << "row " << row << " of a part";
        ASSERT_TRUE(taken.insert(row).second) << "row " << row << " has two parts";
        // In two steps: those between two multiples, to the place of the first; then what lies there.
        std::vector<int64_t> neighbours, steps;
        for (int other = 0; other < count; ++other) {
          if (other / part.step == part.part / part.step) neighbours.push_back(part.rows[static_cast<size_t>(other)]);
          if (other % part.step == 0) steps.push_back(part.rows[static_cast<size_t>(other)]);
        }
        ASSERT_EQ(part.neighbours, neighbours) << "part " << part.part << " of " << count;
        ASSERT_EQ(part.steps, steps);
      }
      for (int t = 0; t < s.count; ++t, ++at) {
        ASSERT_LT(at, end);
        const Place& expected = line[at];
        ASSERT_TRUE(s.sequence == expected.sequence && s.head == expected.head && s.row_tile == expected.row_tile && s.first + t == expected.tile && s.line == expected.line)
            << "CTA " << cta << " of " << p.num_ctas << ", tile " << at << " of the line: sequence " << s.sequence << ", head " << s.head << ", row tile " << s.row_tile << ", tile " << s.first + t;
      }
    }
    ASSERT_EQ(at, end);
    // Each warp works it out for itself: all lanes must agree.
    for (size_t lane = 1; lane < HostWarp::kLanes; ++lane) {
      ASSERT_EQ(walk.shares[lane], walk.shares[0]);
      ASSERT_EQ(walk.segments[lane].size(), walk.segments[0].size());
      for (size_t i = 0; i < walk.segments[lane].size(); ++i) {
        const HostSegment &a = walk.segments[lane][i], &b = walk.segments[0][i];
        ASSERT_TRUE(a.sequence == b.sequence && a.head == b.head && a.row_tile == b.row_tile && a.first == b.first && a.count == b.count && a.line == b.line);
      }
    }
  }
  for (int lane = 0; lane < lanes; ++lane) ASSERT_EQ(ends[static_cast<size_t>(lane)], lines[static_cast<size_t>(lane)].size());
}

int random_length() {
  switch (next_random() % 4) {
    case 0: return 0;
    case 1: return static_cast<int>(next_random() % 70);
    case 2: return 32 * static_cast<int>(next_random() % 10);
    default: return static_cast<int>(next_random() % 900);
  }
}

// Faults: a tile that two CTAs take or none; a CTA with more than its share; a walk that loses its place between sequences, heads or row tiles; parts of two results in
// one place, or looked for where nobody left them.
TEST(EvenShare, GivesEveryTileOnceAndNobodyMoreThanOneOverTheAverage) {
  for (const Schedule* schedule : {&uniform_schedule(), &windowed_schedule()}) {
    for (const int batch : {1, 2, 7, 31, 32, 33, 70, 129, 270}) {
      for (const int ctas : {1, 3, 33, 130}) {
        std::vector<int> lens, windows;
        for (int i = 0; i < batch * (schedule->heads_differ ? schedule->kv_heads : 1); ++i) lens.push_back(random_length());
        for (int h = 0; h < schedule->kv_heads; ++h) windows.push_back(h == 0 ? 0 : static_cast<int>(next_random() % 300));
        expect_even(*schedule, Batch(*schedule, lens, windows, ctas));
        if (testing::Test::HasFatalFailure()) return;
      }
    }
  }
}

// Faults: 0 tiles divided by; more CTAs than tiles; one sequence that all others wait for.
TEST(EvenShare, HoldsAtItsEdges) {
  for (const Schedule* schedule : {&uniform_schedule(), &windowed_schedule()}) {
    const size_t each = schedule->heads_differ ? static_cast<size_t>(schedule->kv_heads) : 1;
    const std::vector<int> windows = {0, 17, 100};
    for (const int ctas : {1, 2, 4, 63, 200}) {
      expect_even(*schedule, Batch(*schedule, std::vector<int>(40 * each, 0), windows, ctas));
      expect_even(*schedule, Batch(*schedule, std::vector<int>(each, 1), windows, ctas));
      std::vector<int> ragged(45 * each, 1);
      ragged[each * 37] = 9000;
      expect_even(*schedule, Batch(*schedule, ragged, windows, ctas));
    }
  }
}

// Faults: sequences of one length are cut where the next could begin (64 of 4 tiles among 33 ranges: 32 take two each), or are not cut although somebody then has twice as
// many tiles as the average (34 of 40 among 33), or are cut in parts that go on in the next pair (8 of 128 among 33: each in four of 32).
TEST(EvenShare, CutsSequencesOfOneLengthAlike) {
  const Schedule& schedule = uniform_schedule();
  const int lanes = schedule.kv_heads * schedule.row_tiles;
  struct Case {
    int sequences, tiles, ranges, first_count, used;
  };
  for (const Case& c : {Case{64, 4, 33, 8, 32}, Case{8, 128, 33, 32, 32}, Case{34, 40, 33, 40, 33}, Case{1, 1024, 33, 32, 33}, Case{5, 3, 8, 3, 5}, Case{65, 16, 33, 32, 33}}) {
    SCOPED_TRACE(std::to_string(c.sequences) + " of " + std::to_string(c.tiles) + " tiles among " + std::to_string(c.ranges));
    const Batch batch(schedule, std::vector<int>(static_cast<size_t>(c.sequences), c.tiles * schedule.tile_tokens), {0}, c.ranges * lanes);
    expect_even(schedule, batch);
    int used = 0;
    for (int range = 0; range < c.ranges; ++range) used += schedule.walk(batch.params, range * lanes).segments[0].empty() ? 0 : 1;
    EXPECT_EQ(used, c.used);
    int count = 0;
    const HostWalk first = schedule.walk(batch.params, 0);
    for (const HostSegment& s : first.segments[0]) count += s.count;
    EXPECT_EQ(count, c.first_count);
  }
}

// Fault: a pair of three tiles for each warp goes to two CTAs, whose merge takes longer than half of them; or pairs of one tile wait for one another.
TEST(EvenShare, SplitsNoShortPairWhileCtasAreFree) {
  const Schedule& schedule = uniform_schedule();
  for (const int tiles : {1, 2, schedule.least_tiles, 2 * schedule.least_tiles - 1}) {
    const Batch batch(schedule, std::vector<int>(5, tiles * schedule.tile_tokens), {0}, 300);
    for (int cta = 0; cta < 300; ++cta) {
      const HostWalk walk = schedule.walk(batch.params, cta);
      ASSERT_LE(walk.segments[0].size(), 1U);
      for (const HostSegment& s : walk.segments[0]) EXPECT_EQ(s.count, tiles);
    }
  }
}

// Fault: a table row for each KV head changes the order of the work, and with it the bits, where the lengths are still those of sequences.
TEST(EvenShare, AHeadwiseTableWalksAsAUniformOneWhereHeadsAreAlike) {
  for (const int ctas : {1, 3, 33, 130}) {
    std::vector<int> lens;
    for (int i = 0; i < 40; ++i) lens.push_back(random_length());
    const Batch uniform(uniform_schedule(), lens, {0, 0}, ctas);
    Batch headwise(uniform_schedule(), lens, {0, 0}, ctas);
    headwise.params.seq_lens_stride_seq = 1;
    headwise.params.seq_lens_stride_head = 0;
    for (int cta = 0; cta < ctas; ++cta) {
      const HostWalk a = uniform_schedule().walk(uniform.params, cta), b = headwise_schedule().walk(headwise.params, cta);
      for (size_t lane = 0; lane < 32; ++lane) {
        EXPECT_EQ(a.shares[lane].lanes, b.shares[lane].lanes);
        ASSERT_EQ(a.segments[lane].size(), b.segments[lane].size()) << "CTA " << cta << " of " << ctas;
        for (size_t i = 0; i < a.segments[lane].size(); ++i) {
          const HostSegment &x = a.segments[lane][i], &y = b.segments[lane][i];
          EXPECT_EQ(std::tie(x.sequence, x.head, x.row_tile, x.first, x.count, x.line), std::tie(y.sequence, y.head, y.row_tile, y.first, y.count, y.line));
        }
      }
    }
  }
}

// Faults: a remainder that is dropped or read twice; a partition that follows anything but the pair's own tiles; parts of one tile whose merge takes longer than a second.
TEST(FixedPartition, GivesEveryTileOnceInPartsThatDifferByOne) {
  for (const Schedule* schedule : {&uniform_schedule(), &windowed_schedule()}) {
    for (const int length : {0, 1, 32, 33, 300, 1000}) {
      const Batch batch(*schedule, std::vector<int>(static_cast<size_t>(schedule->kv_heads), length), {0, 50, 400}, 0);
      for (const int splits : {1, 2, 3, 8, 40}) {
        for (int head = 0; head < schedule->kv_heads; ++head) {
          const int tiles = schedule->tiles_of(batch.params, 0, head);
          const int parts = std::min(splits, (tiles + schedule->least_tiles - 1) / schedule->least_tiles);
          int next = 0, used = 0;
          for (int split = 0; split < splits; ++split) {
            const HostSegment s = schedule->split(batch.params, 0, head, split, splits);
            EXPECT_EQ(s.first, next);
            EXPECT_TRUE(split < parts ? s.count == tiles / parts || s.count == (tiles + parts - 1) / parts : s.count == 0);
            next += s.count;
            used += s.count > 0 ? 1 : 0;
          }
          EXPECT_EQ(next, tiles);
          EXPECT_EQ(used, parts);
          EXPECT_EQ(schedule->used_splits(batch.params, 0, head, splits), parts);
        }
      }
    }
  }
}

// Faults: a key that someone sees and nobody reads, or the reverse (sink tokens inside a chunk); a tile that holds no such key; a unit taken for
// visible to all that is not.
TEST(Span, HoldsWhatSomeQueryTokenSeesAndNothingElse) {
  for (int round = 0; round < 400; ++round) {
    const int length = static_cast<int>(next_random() % 400);
    const std::vector<int> windows = {static_cast<int>(next_random() % 3 == 0 ? 0 : next_random() % 150 + 1), static_cast<int>(next_random() % 40 + 1)};
    for (const Schedule* schedule : {&uniform_schedule(), &windowed_schedule(), &chunked_schedule()}) {
      Batch batch(*schedule, std::vector<int>(static_cast<size_t>(schedule->kv_heads), length), {windows[0], windows[1], 3}, 0);
      batch.params.batch = 1;
      batch.params.sink_tokens = static_cast<int>(next_random() % 90 + 1);
      batch.params.chunk = static_cast<int>(next_random() % 300 + 1);
      const pt_decode_params& p = batch.params;
      for (int head = 0; head < schedule->kv_heads; ++head) {
        SCOPED_TRACE("length " + std::to_string(length) + ", window " + std::to_string(batch.windows[static_cast<size_t>(head)]) + ", sink " + std::to_string(p.sink_tokens) + ", chunk " +
                     std::to_string(p.chunk));
        std::vector<int> covered(static_cast<size_t>(length) + 1000, 0);
        for (int tile = 0; tile < schedule->tiles_of(p, 0, head); ++tile) {
          const int first = schedule->token_of(p, 0, head, tile);
          int used = 0;
          for (int token = first; token < first + schedule->tile_tokens; ++token) {
            ++covered.at(static_cast<size_t>(token));
            used += schedule->readable(p, 0, head, token) ? 1 : 0;
          }
          EXPECT_TRUE(used > 0 || length == 0) << "tile " << tile;
        }
        for (int token = 0; token < length; ++token) {
          const bool seen = schedule->seen(p, 0, head, token);
          ASSERT_EQ(schedule->readable(p, 0, head, token), seen) << "token " << token;
          ASSERT_LE(covered[static_cast<size_t>(token)], 1) << "token " << token;
          ASSERT_TRUE(!seen || covered[static_cast<size_t>(token)] == 1) << "token " << token;
        }
      }
    }
  }
}

}  // namespace
}  // namespace pagetune::testing_support
