#include "pagetune/spec.hpp"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>
#include <set>
#include <type_traits>

#include "tests/codegen_testing.hpp"

namespace pagetune {
namespace {

using testing::error_text;
using testing::expect_mentions;

constexpr int kFields = 25;

// Visits each field of the struct itself, not of its JSON: a new field does not compile here until it is listed.
template <class Visit>
void each_field(AttentionSpec& s, Visit visit) {
  auto& [f1, f2, f3, f4, f5, f6, f7, f8, f9, f10, f11, f12, f13, f14, f15, f16, f17, f18, f19, f20, f21, f22, f23, f24, f25] = s;
  visit(f1), visit(f2), visit(f3), visit(f4), visit(f5), visit(f6), visit(f7), visit(f8), visit(f9), visit(f10), visit(f11), visit(f12);
  visit(f13), visit(f14), visit(f15), visit(f16), visit(f17), visit(f18), visit(f19), visit(f20), visit(f21), visit(f22), visit(f23), visit(f24), visit(f25);
}

template <class E>
int enumerators() {
  int count = 0;
  while (std::string(name_of(static_cast<E>(count))) != "invalid") ++count;
  return count;
}

AttentionSpec random_spec(std::mt19937& random) {
  AttentionSpec spec;
  each_field(spec, [&](auto& field) {
    using T = std::remove_cvref_t<decltype(field)>;
    if constexpr (std::is_enum_v<T>) {
      field = static_cast<T>(random() % static_cast<unsigned>(enumerators<T>()));
    } else if constexpr (std::is_same_v<T, bool>) {
      field = random() % 2 == 1;
    } else {
      field = static_cast<int>(random() % 2048);
    }
  });
  return spec;
}

// The identity is stored on disk: catches any change of spelling, order or spacing.
TEST(Spec, CanonicalJsonIsStable) {
  EXPECT_EQ(canonical_json(AttentionSpec{}),
            R"({"address_map":"slot","alibi":false,"batch_invariant":false,"block_sparse":false,"checked":false,"chunk":false,)"
            R"("head_dim_k":128,"head_dim_v":128,"headwise":false,"kind":"decode","kv_dtype":"bf16","kv_heads":8,"kv_scale":"none","layout":"nhd","lse":false,"mask":"none",)"
            R"("out_dtype":"bf16","page_size":16,"q_dtype":"bf16","q_heads":32,"q_len":1,"sink_tokens":false,"sinks":false,)"
            R"("soft_cap":false,"window":false})");
  EXPECT_EQ(spec_key(AttentionSpec{}).size(), 64u);
}

// Catches a field that is written but not read, or read into its neighbour.
TEST(Spec, RoundTripsRandomSpecs) {
  std::mt19937 random(1);
  for (int i = 0; i < 500; ++i) {
    const AttentionSpec spec = random_spec(random);
    const std::string text = canonical_json(spec);
    EXPECT_EQ(spec_from_json(text), spec);
    EXPECT_EQ(spec_from_partial_json(text), spec);
    EXPECT_EQ(nlohmann::json::parse(text).dump(), text);
    EXPECT_EQ(nlohmann::json::parse(text).size(), static_cast<size_t>(kFields));
  }
}

// Catches a field that is missing from the identity: two different kernels would share one cached binary.
TEST(Spec, EveryFieldChangesKeyAndHash) {
  std::mt19937 random(2);
  for (int round = 0; round < 20; ++round) {
    const AttentionSpec base = random_spec(random);
    std::set<std::string> keys = {spec_key(base)};
    std::set<size_t> hashes = {AttentionSpecHash{}(base)};
    for (int target = 0; target < kFields; ++target) {
      AttentionSpec changed = base;
      int index = 0;
      each_field(changed, [&](auto& field) {
        using T = std::remove_cvref_t<decltype(field)>;
        if (index++ != target) return;
        if constexpr (std::is_enum_v<T>) {
          field = static_cast<T>((static_cast<int>(field) + 1) % enumerators<T>());
        } else if constexpr (std::is_same_v<T, bool>) {
          field = !field;
        } else {
          field += 1;
        }
      });
      EXPECT_TRUE(keys.insert(spec_key(changed)).second) << "field " << target;
      EXPECT_TRUE(hashes.insert(AttentionSpecHash{}(changed)).second) << "field " << target;
    }
  }
}

// Catches a stored or hand-written spec that is silently taken for another.
TEST(Spec, StrictReadingNamesWhatIsWrong) {
  nlohmann::json good = nlohmann::json::parse(canonical_json(AttentionSpec{}));
  auto with = [&](const char* key, nlohmann::json value) {
    nlohmann::json json = good;
    json[key] = std::move(value);
    return json.dump();
  };
  for (auto read : {spec_from_json, spec_from_partial_json}) {
    expect_mentions(error_text([&] { read(with("windows", true)); }), {"'windows'", "unknown", "window"});
    expect_mentions(error_text([&] { read(with("page_size", 16.5)); }), {"'page_size'", "16.5", "integer"});
    expect_mentions(error_text([&] { read(with("page_size", 1LL << 40)); }), {"'page_size'", "1099511627776", "2147483647"});
    expect_mentions(error_text([&] { read(with("page_size", ~0ULL)); }), {"'page_size'", "18446744073709551615"});
    expect_mentions(error_text([&] { read(with("lse", 1)); }), {"'lse'", "true or false"});
    expect_mentions(error_text([&] { read(with("layout", "dhn")); }), {"layout", "'dhn'", "nhd, hnd"});
    expect_mentions(error_text([&] { read(with("kind", 0)); }), {"'kind'", "decode", "prefill"});
    expect_mentions(error_text([&] { read("[1]"); }), {"object", "array"});
    expect_mentions(error_text([&] { read("{\"kind\":"); }), {"not valid JSON"});
    expect_mentions(error_text([&] { read(R"({"kv_heads":8,"kv_heads":4})"); }), {"kv_heads", "twice"});
  }
  for (const auto& [key, value] : good.items()) {
    nlohmann::json json = good;
    json.erase(key);
    expect_mentions(error_text([&] { spec_from_json(json.dump()); }), {"'" + key + "'", "missing"});
    EXPECT_EQ(spec_from_partial_json(json.dump()), AttentionSpec{});
  }
  EXPECT_EQ(spec_from_partial_json("{}"), AttentionSpec{});
  EXPECT_EQ(spec_from_partial_json(R"({"kv_heads":4})").kv_heads, 4);
}

// Catches a name table that is out of step with its enumerators.
TEST(Spec, NamesFollowTheEnumerators) {
  EXPECT_EQ(enumerators<Kind>(), 5);
  EXPECT_EQ(enumerators<DType>(), 7);
  EXPECT_EQ(enumerators<Layout>(), 2);
  EXPECT_EQ(enumerators<AddressMap>(), 2);
  EXPECT_EQ(enumerators<ScaleGranularity>(), 5);
  EXPECT_EQ(enumerators<MaskKind>(), 3);
  for (int i = 0; i < enumerators<DType>(); ++i) EXPECT_EQ(dtype_from_name(name_of(static_cast<DType>(i))), static_cast<DType>(i));
  EXPECT_EQ(layout_from_name("hnd"), Layout::hnd);
  EXPECT_STREQ(name_of(Kind::page_copy), "page_copy");
  EXPECT_STREQ(name_of(DType::int4), "int4");
  EXPECT_STREQ(name_of(ScaleGranularity::token_head), "token_head");
  EXPECT_STREQ(name_of(MaskKind::offset), "offset");
  expect_mentions(error_text([] { dtype_from_name("bfloat16"); }), {"'bfloat16'", "bf16, fp16, fp32"});
  EXPECT_EQ(bits_of(DType::bf16), 16);
  EXPECT_EQ(bits_of(DType::fp32), 32);
  EXPECT_EQ(bits_of(DType::fp8_e5m2), 8);
  EXPECT_EQ(bits_of(DType::int4), 4);
}

// Catches 32-bit arithmetic and a forgotten V.
TEST(Spec, KvBytes) {
  AttentionSpec spec;  // 8 heads of 128, bf16
  EXPECT_EQ(kv_bytes(spec, 1), 8 * (128 + 128) * 2);
  EXPECT_EQ(kv_bytes(spec, 1 << 24), int64_t{1 << 24} * 4096);
  spec.kv_dtype = DType::int4;
  EXPECT_EQ(kv_bytes(spec, 3), 3 * 8 * 256 / 2);
  spec.head_dim_v = 64;
  EXPECT_EQ(kv_bytes(spec, 1), 8 * 192 / 2);
}

struct RankCase {
  int q, kv, tp, rank_q, rank_kv;
};
// Catches a wrong head count on a rank: it would read other ranks' heads.
TEST(Spec, ForRank) {
  for (const RankCase& c : {RankCase{32, 8, 1, 32, 8}, RankCase{32, 8, 8, 4, 1}, RankCase{32, 4, 8, 4, 1}, RankCase{64, 8, 16, 4, 1},
                            RankCase{16, 2, 4, 4, 1}, RankCase{96, 8, 4, 24, 2}, RankCase{9, 3, 3, 3, 1}, RankCase{71, 1, 1, 71, 1}}) {
    AttentionSpec model = testing::decode_spec(c.q, c.kv, 64, 32, DType::fp16);
    model.lse = true;
    const AttentionSpec rank = for_rank(model, c.tp);
    EXPECT_EQ(rank.q_heads, c.rank_q) << c.q << "/" << c.kv << " tp " << c.tp;
    EXPECT_EQ(rank.kv_heads, c.rank_kv) << c.q << "/" << c.kv << " tp " << c.tp;
    model.q_heads = rank.q_heads;
    model.kv_heads = rank.kv_heads;
    EXPECT_EQ(rank, model);  // nothing else changes
  }
  auto refuse = [](int q, int kv, int tp) { return error_text([&] { for_rank(testing::decode_spec(q, kv, 64), tp); }); };
  expect_mentions(refuse(9, 3, 2), {"kv_heads 3", "tp 2"});
  expect_mentions(refuse(32, 8, 12), {"kv_heads 8", "tp 12"});
  expect_mentions(refuse(6, 2, 4), {"q_heads 6", "tp 4"});
  expect_mentions(refuse(32, 8, 0), {"tp is 0", "1 or more"});
  expect_mentions(refuse(30, 8, 2), {"q_heads 30", "kv_heads 8"});
  expect_mentions(refuse(8, 0, 1), {"kv_heads 0"});
}

}  // namespace
}  // namespace pagetune
