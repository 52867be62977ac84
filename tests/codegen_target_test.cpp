#include "codegen/target.hpp"

#include <gtest/gtest.h>

#include <set>

#include "codegen/config.hpp"
#include "codegen/environment.hpp"
#include "tests/codegen_testing.hpp"

namespace pagetune {
namespace {

using testing::error_text;
using testing::expect_mentions;

// Catches a row of the table in the wrong column: kernels would be refused, or would fail to launch.
TEST(Target, LimitsByName) {
  const Target h200 = Target::by_name("sm_90a");
  EXPECT_EQ(h200.backend, Backend::cuda);
  EXPECT_EQ(h200.arch, "sm_90a");
  EXPECT_EQ(h200.compute_capability, 90);
  EXPECT_EQ(h200.processors, 132);
  EXPECT_EQ(h200.shared_per_block, 227 * 1024);
  EXPECT_EQ(h200.shared_per_processor, 228 * 1024);
  EXPECT_EQ(h200.registers_per_processor, 65536);
  EXPECT_EQ(h200.threads_per_processor, 2048);
  EXPECT_EQ(Target::by_name("90a"), h200);
  EXPECT_NE(Target::by_name("sm_90"), h200);  // other code: the suffix is part of the identity
  EXPECT_EQ(Target::by_name("120a").compute_capability, 120);
  EXPECT_EQ(Target::by_name("sm_120").shared_per_block, 99 * 1024);
  EXPECT_EQ(Target::by_name("sm_80").shared_per_block, 163 * 1024);
  EXPECT_EQ(Target::by_name("sm_87").threads_per_processor, 1536);
  EXPECT_EQ(Target::by_name("sm_89").shared_per_processor, 100 * 1024);
  for (const std::string& name : testing::target_names()) {
    const Target target = Target::by_name(name);
    EXPECT_GT(target.processors, 0) << name;
    if (name == "cpu") continue;
    EXPECT_EQ(target.arch, name);
    EXPECT_EQ(target.shared_per_processor, target.shared_per_block + 1024) << name;
  }
}

// Catches a CPU target that depends on the machine it is named on in anything but its thread count.
TEST(Target, CpuIsTheBaseline) {
  const Target cpu = Target::by_name("cpu");
  EXPECT_EQ(cpu.backend, Backend::cpu);
  EXPECT_EQ(cpu.arch, "x86-64-v3");
  EXPECT_EQ(cpu.vector_bits, 256);
  EXPECT_EQ(cpu.shared_per_block, 0);
  EXPECT_STREQ(name_of(cpu.backend), "cpu");
}

// Catches a near miss that is silently compiled for another architecture.
TEST(Target, UnknownNamesAreRefused) {
  for (const char* name : {"", "sm_", "sm_75", "sm_90b", "120f", "SM_90", "90aa", "9", "cuda", "sm_90 "}) {
    expect_mentions(error_text([&] { Target::by_name(name); }), {std::string("'") + name + "'", "sm_80", "sm_121a", "cpu"});
  }
}

// Catches an order or a spelling that depends on insertion, and input that is not a flat object of integers.
TEST(KernelConfig, JsonIsCanonicalAndStrict) {
  KernelConfig config;
  config.set("VARIANT", 2);
  config.set("NUM_SPLITS", 8);
  EXPECT_EQ(config.canonical_json(), R"({"NUM_SPLITS":8,"VARIANT":2})");
  EXPECT_EQ(KernelConfig::from_json(R"({ "VARIANT": 2, "NUM_SPLITS": 8 })"), config);
  EXPECT_EQ(KernelConfig().canonical_json(), "{}");
  EXPECT_EQ(KernelConfig::from_json("{}"), KernelConfig());
  EXPECT_EQ(config.variant(), 2);
  EXPECT_EQ(config.get("TILE_KV", 5), 5);
  expect_mentions(error_text([&] { config.at("TILE_KV"); }, ErrorCode::internal), {"TILE_KV", "NUM_SPLITS"});
  expect_mentions(error_text([] { KernelConfig::from_json(R"({"VARIANT":"2"})"); }), {"VARIANT", "\"2\"", "integer"});
  expect_mentions(error_text([] { KernelConfig::from_json(R"({"VARIANT":true})"); }), {"VARIANT", "true"});
  expect_mentions(error_text([] { KernelConfig::from_json(R"({"VARIANT":1,"VARIANT":2})"); }), {"VARIANT", "twice"});
  expect_mentions(error_text([] { KernelConfig::from_json("[]"); }), {"object", "array"});
  expect_mentions(error_text([] { KernelConfig::from_json("{"); }), {"not valid JSON"});
}

Environment h200() {
  Environment env;
  env.backend = "cuda";
  env.device = "NVIDIA H200";
  env.arch = "sm_90a";
  env.processors = 132;
  env.memory_bus_bits = 6144;
  env.memory_clock_khz = 3201000;
  env.l2_bytes = 62914560;
  env.clock_khz = 1980000;
  env.ecc = 1;
  env.driver = "13.0";
  env.compiler = "nvrtc 13.0";
  env.memory_bytes = 150000000000;
  return env;
}

// Catches winners of one device served to another: a field that is not in the key, or the free memory size in it.
TEST(Environment, KeyHoldsTheStrictIdentityOnly) {
  const Environment base = h200();
  std::set<std::string> keys = {base.key()};
  auto changed = [&](auto change) {
    Environment env = base;
    change(env);
    EXPECT_TRUE(keys.insert(env.key()).second) << env.canonical_json();
  };
  changed([](Environment& e) { e.backend = "cpu"; });
  changed([](Environment& e) { e.device += "x"; });
  changed([](Environment& e) { e.arch = "sm_90"; });
  changed([](Environment& e) { e.cpu_features = "+avx2"; });
  changed([](Environment& e) { ++e.processors; });
  changed([](Environment& e) { ++e.memory_bus_bits; });
  changed([](Environment& e) { ++e.memory_clock_khz; });
  changed([](Environment& e) { ++e.l2_bytes; });
  changed([](Environment& e) { ++e.clock_khz; });
  changed([](Environment& e) { ++e.ecc; });
  changed([](Environment& e) { e.driver = "13.1"; });
  changed([](Environment& e) { e.compiler = "nvrtc 13.1"; });
  Environment other_memory = base;
  ++other_memory.memory_bytes;
  EXPECT_EQ(other_memory.key(), base.key());
  EXPECT_NE(other_memory.canonical_json(), base.canonical_json());
}

// Catches a field lost on the way through the store, and a damaged row that is taken for a device.
TEST(Environment, JsonRoundTripIsStrict) {
  const Environment base = h200();
  EXPECT_EQ(Environment::from_json(base.canonical_json()), base);
  EXPECT_EQ(base.class_text(), "cuda sm_90a 132 processors");
  std::string text = base.canonical_json();
  text.replace(text.find("\"ecc\""), 5, "\"eec\"");
  expect_mentions(error_text([&] { Environment::from_json(text); }), {"'ecc'", "missing"});
  text = base.canonical_json();
  text.insert(1, "\"extra\":1,");
  expect_mentions(error_text([&] { Environment::from_json(text); }), {"'extra'", "unknown"});
  expect_mentions(error_text([] { Environment::from_json("3"); }), {"object"});
  Environment broken = base;
  broken.device = "bad \xff name";  // a driver's string need not be UTF-8; it must not throw
  EXPECT_EQ(broken.key().size(), 64u);
}

// Catches a device name that leaves the folder or makes an illegal file name.
TEST(Environment, FileNameIsSafe) {
  auto name = [](const std::string& device) {
    Environment env;
    env.device = device;
    return env.file_name();
  };
  EXPECT_EQ(name("NVIDIA H200"), "NVIDIA_H200");
  EXPECT_EQ(name("Intel(R) Xeon(R) CPU @ 2.80GHz"), "Intel_R_Xeon_R_CPU_2.80GHz");
  EXPECT_EQ(name("../../etc/passwd"), "etc_passwd");
  EXPECT_EQ(name(".hidden"), "hidden");
  EXPECT_EQ(name(""), "unknown");
  EXPECT_EQ(name("///"), "unknown");
}

}  // namespace
}  // namespace pagetune
