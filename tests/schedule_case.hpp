// Of a file that has defined SCHEDULE_CASE, its namespaces spec and config within, and included the template: the Schedule. No guard: one for each.
namespace SCHEDULE_CASE {

using namespace pagetune::testing_support;

inline HostSegment told(const Segment& s) { return {s.sequence, s.head, s.row_tile, s.first, s.count, s.span.tiles, s.line}; }

inline HostWalk walk_of(const pt_decode_params& p, int cta) {
  HostWalk result;
  HostWarp().run([&](int lane) {
    const auto at = static_cast<size_t>(lane);
    Shares shares{};
    Walk walk{};
    const bool any = start_walk(p, lane, cta, shares, walk, [] {});
    result.shares[at] = {shares.each, shares.whole, shares.opening, shares.near, shares.total, shares.group, shares.parts, shares.chunk, shares.rest, shares.lanes, shares.range, shares.lane};
    if (!any) return;
    result.segments[at].push_back(told(walk.now));
    while (walk.left > 0) {
      walk.next(p);
      result.segments[at].push_back(told(walk.now));
    }
  });
  return result;
}

inline Shares shares_of(HostShares s) { return {s.each, s.whole, s.opening, s.near, s.total, s.group, s.parts, s.chunk, s.rest, s.lanes, s.range, s.lane}; }

// As much of a segment as says where its pair lies in the line.
inline Segment line_of(const HostSegment& told) {
  Segment s{};
  s.span.tiles = told.tiles;
  s.line = told.line;
  return s;
}

inline Segment pair_of(const pt_decode_params& p, int sequence, int head) {
  Segment s{};
  s.sequence = sequence;
  s.head = head;
  s.span = span_of(p, sequence, head);
  return s;
}

inline const Schedule& schedule() {
  static const Schedule value = {
      kHeadsMayDiffer,
      kRowTiles,
      kTileTokens,
      spec::kv_heads,
      kRowsPerCta,
      kLeastTiles,
      config::num_warps,
      kOpening,
      walk_of,
      [](HostShares shares, int range, int& count) { return shares_of(shares).begin(range, count); },
      [](HostShares shares, const HostSegment& s) {
        HostPart result;
        const Partials parts = even_partials(shares_of(shares), line_of(s), result.part);
        const auto rows_of = [](const Partials& of) {
          std::vector<int64_t> rows;
          for (int part = 0; part < of.count; ++part) rows.push_back(of.row(part, 0));
          return rows;
        };
        result.rows = rows_of(parts);
        result.neighbours = rows_of(parts.neighbours(result.part));
        result.steps = rows_of(parts.last_step(true));
        result.step = Partials::kStep;
        return result;
      },
      [](const pt_decode_params& p, int sequence, int head) { return span_of(p, sequence, head).tiles; },
      [](const pt_decode_params& p, int sequence, int head, int split, int num_splits) {
        Segment s = pair_of(p, sequence, head);
        take_split(s, split, num_splits);
        return told(s);
      },
      [](const pt_decode_params& p, int sequence, int head, int num_splits) { return used_splits(span_of(p, sequence, head), num_splits); },
      [](const pt_decode_params& p, int sequence, int head, int tile) { return span_of(p, sequence, head).token_of(tile); },
      [](const pt_decode_params& p, int sequence, int head, int token) { return Visibility{p, sequence, head}.readable(span_of(p, sequence, head), token); },
      [](const pt_decode_params& p, int sequence, int head, int token) {
        const Span span = span_of(p, sequence, head);
        bool any = false;
        for (int i = 0; i < span.tokens; ++i) any |= Visibility{p, sequence, head}.sees(span, token, i, 0);
        return any;
      },
      [](const pt_decode_params& p, int sequence, int head, int token) { return Visibility{p, sequence, head}.all_see(span_of(p, sequence, head), token); },
  };
  return value;
}

}  // namespace SCHEDULE_CASE
