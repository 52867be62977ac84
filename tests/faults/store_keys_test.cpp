// Keys that let one thing answer for another.
#include <map>
#include <set>

#include "../store_expect.hpp"
#include "codegen/generate.hpp"
#include "codegen/launch_plan.hpp"
#include "codegen/space.hpp"

namespace pagetune {
namespace {

// Fault: two configs that differ in what is compiled (a number of warps, stages, a loader) share a binary, or a kernel is compiled once for each split count.
TEST(StoreKeys, ConfigsShareABinaryIfAndOnlyIfTheyShareAShape_B157) {
  for (const char* name : {"sm_80", "sm_90a", "cpu"}) {
    const Target target = Target::by_name(name);
    std::map<KernelConfig, std::string> keys;
    std::map<std::string, KernelConfig> shapes;
    size_t same = 0;
    for (const KernelConfig& config : ConfigSpace::builtin().candidates(AttentionSpec{}, target).configs) {
      const std::string key = binary_key(generate(AttentionSpec{}, config, target), "compiler");
      const auto [shape, is_new] = keys.emplace(shape_of(config), key);
      EXPECT_EQ(shape->second, key) << config.canonical_json();
      const auto [first, is_new_key] = shapes.emplace(key, shape_of(config));
      EXPECT_EQ(first->second, shape_of(config)) << name;
      same += is_new ? 0 : 1;
    }
    EXPECT_GT(keys.size(), 5u) << name;
    EXPECT_GT(same, 5u) << name;
  }
}

// Fault: of a database that ships winners for several architectures another architecture's answer, though their parts are otherwise alike.
TEST(StoreKeys, OneDatabaseForTwoArchitecturesAnswersEachWithItsOwn_B155) {
  Environment ampere = sample_environment(), hopper = sample_environment();
  ampere.arch = "sm_80";
  TempDir shipped;
  for (const Environment& env : {ampere, hopper}) put(*Store::open(shipped.path()), sample_row({3, 12}, {}, env));
  put(*Store::open(shipped.path()), sample_row({4, 12}, {}, hopper));
  setenv("PAGETUNE_SYSTEM_DB", (shipped / "winners.db").c_str(), 1);
  for (const std::string& dir : {shipped.path(), std::string(":memory:")}) {
    const auto store = Store::open(dir);
    for (const Environment& env : {ampere, hopper}) {
      const auto found = store->layered_winners(env, spec_key(AttentionSpec{}));
      EXPECT_EQ(found.size(), env == ampere ? 1u : 2u) << env.arch;
      for (const LayeredWinner& one : found)
        EXPECT_FALSE(one.other_device);
    }
    EXPECT_TRUE(store->problems().empty());
  }
  unsetenv("PAGETUNE_SYSTEM_DB");
}

// Fault: a part of a key that ends where the next one begins: two devices, or two kernels of other names, share what is stored.
TEST(StoreKeys, FieldsCannotRunIntoOneAnother_B145) {
  const auto key_of = [](const std::string& device, const std::string& arch, const std::string& compiler) {
    Environment env = sample_environment();
    env.device = device;
    env.arch = arch;
    env.compiler = compiler;
    return env.key();
  };
  const std::set<std::string> keys = {key_of("a|b", "c", "d"), key_of("a", "b|c", "d"), key_of("a", "b", "c|d"), key_of("a|b|c", "", "d"), key_of("a\",\"arch\":\"b", "c", "d"), key_of("a", "b\",\"arch\":\"c", "d"), key_of("", "a", "bcd"), key_of("a", "", "bcd")};
  EXPECT_EQ(keys.size(), 8u);
}

}  // namespace
}  // namespace pagetune
