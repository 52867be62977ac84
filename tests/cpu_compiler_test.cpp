// The LLVM compiler: what it refuses, what it makes, and what it does with objects that are not its own.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <thread>

#include "codegen/sha256.hpp"
#include "cpu_problem.hpp"
#include "pagetune/error.hpp"
#include "runtime/cpu_provider.hpp"

namespace pagetune::test {
namespace {

KernelSource good_source() {
  Shape shape;
  shape.variant = 2;
  shape.group = 24;
  return source_of(shape, device().target());
}

const Binary& good_binary() {
  static const Binary binary = cpu_compiler().compile(good_source());
  return binary;
}

// The error that a call throws; fails if there is none or if it does not hold the text.
template <class Call> void expect_error(ErrorCode code, const std::string& text, Call call) {
  try {
    call();
    ADD_FAILURE() << "no error; expected one with '" << text << "'";
  } catch (const Error& error) {
    EXPECT_EQ(static_cast<int>(error.code()), static_cast<int>(code)) << error.what();
    EXPECT_NE(std::string(error.what()).find(text), std::string::npos) << error.what();
  }
}

void set(KernelSource& source, const std::string& name, int64_t value) {
  for (auto& constant : source.constants)
    if (constant.first == name) constant.second = value;
}

// Fault: a constant that is absent keeps some value of its own.
TEST(Constants, EachMustBeGiven) {
  const KernelSource source = good_source();
  for (size_t i = 0; i < source.constants.size(); ++i) {
    KernelSource without = source;
    without.constants.erase(without.constants.begin() + static_cast<std::ptrdiff_t>(i));
    expect_error(ErrorCode::invalid_argument, source.constants[i].first, [&] { cpu_compiler().compile(without); });
  }
}

// Fault: a constant that the template does not know is ignored, or the second of two wins.
TEST(Constants, NoneMayBeUnknownOrTwice) {
  KernelSource source = good_source();
  source.constants.emplace_back("spec.windows", 1);
  expect_error(ErrorCode::invalid_argument, "spec.windows", [&] { cpu_compiler().compile(source); });
  source = good_source();
  source.constants.emplace_back("spec.lse", 0);
  expect_error(ErrorCode::invalid_argument, "spec.lse", [&] { cpu_compiler().compile(source); });
}

// Fault: a value that the template's arrays or branches do not hold compiles to something that writes out of bounds.
TEST(Constants, ValuesAreChecked) {
  const std::pair<const char*, int64_t> bad[] = {
      {"spec.head_dim", 264},     {"spec.head_dim", 12},   {"spec.head_dim", 0},         {"spec.dtype", 3},          {"spec.dtype", -1},
      {"spec.page_size", 0},      {"spec.group_size", 0},  {"spec.q_heads", 7},          {"spec.lse", 2},            {"spec.checked", -1},
      {"config.variant", 3},      {"config.tile_kv", 48},  {"config.tile_kv", 128},      {"config.vector_bits", 64}, {"config.vector_bits", 384},
      {"spec.page_size", 1ll << 32 | 16}, {"spec.q_len", 0}, {"spec.q_len", 17}, {"spec.head_dim_v", 4}, {"spec.head_dim_v", 264},
      {"spec.out_dtype", 3}, {"spec.mask", 3},       {"spec.window", 2}};
  for (const auto& [name, value] : bad) {
    KernelSource source = good_source();
    set(source, name, value);
    expect_error(ErrorCode::invalid_argument, name, [&] { cpu_compiler().compile(source); });
    expect_error(ErrorCode::invalid_argument, std::to_string(value), [&] { cpu_compiler().compile(source); });
  }
}

// Fault: names that LLVM does not know only give a warning on stderr and other code than asked for.
TEST(Source, UnknownNamesAreErrors) {
  KernelSource source = good_source();
  source.arch = "not-a-cpu";
  expect_error(ErrorCode::invalid_argument, "not-a-cpu", [&] { cpu_compiler().compile(source); });
  source = good_source();
  source.cpu_features += ",+avx9";
  expect_error(ErrorCode::invalid_argument, "+avx9", [&] { cpu_compiler().compile(source); });
  source = good_source();
  source.entries.push_back("pt_prefill");
  expect_error(ErrorCode::invalid_argument, "pt_prefill", [&] { cpu_compiler().compile(source); });
  source = good_source();
  source.options = {"-O0"};
  expect_error(ErrorCode::invalid_argument, "-O3", [&] { cpu_compiler().compile(source); });
  source = good_source();
  source.backend = Backend::cuda;
  expect_error(ErrorCode::invalid_argument, "cuda", [&] { cpu_compiler().compile(source); });
  expect_error(ErrorCode::invalid_argument, "sass", [&] { cpu_compiler().listing(good_source(), "sass"); });
}

// Fault: host and object disagree on what the kernel is.
TEST(Facts, AreReadBackFromTheObject) {
  const LaunchFacts facts = cpu_compiler().read_facts(good_binary().data);
  EXPECT_EQ(facts.params_size, static_cast<int>(sizeof(pt_decode_params)));
  EXPECT_EQ(facts.params_version, static_cast<int>(PT_PARAMS_VERSION));
  EXPECT_EQ(facts.variant, 2);
  EXPECT_EQ(facts.threads, 0);
  EXPECT_EQ(facts.tile_tokens, 32);
  EXPECT_EQ(facts.rows_per_cta, 12);  // 24 query heads in two even blocks
  EXPECT_EQ(facts.head_tiles, 2);
  EXPECT_EQ(facts.merge_threads, 1);
  EXPECT_EQ(facts.kv_heads, 2);
  EXPECT_EQ(facts.q_heads, 48);
  EXPECT_GT(facts.shared_bytes, 0);
  EXPECT_LT(facts.shared_bytes, 64 * 1024);  // lives on a thread's stack
  Shape one_pass;
  EXPECT_EQ(cpu_compiler().compile(source_of(one_pass, device().target())).facts.merge_threads, 0);
}

// Fault: the same source gives other bytes (addresses, time, names), so that caches and exports never agree; or the key is not the core's.
TEST(Objects, AreReproducible) {
  const Binary again = cpu_compiler().compile(good_source());
  EXPECT_EQ(again.data, good_binary().data);
  EXPECT_EQ(again.sha256, sha256_hex(again.data));
  EXPECT_EQ(again.key, binary_key(good_source(), cpu_compiler().identity()));
  EXPECT_EQ(again.kind, "object");
  EXPECT_EQ(again.arch, device().target().arch);
}

// Fault: compiles at the same time share LLVM state.
TEST(Objects, CompileOnSeveralThreads) {
  const int widths[] = {128, 256, 512};
  std::vector<std::string> first;
  for (int bits : widths) {
    KernelSource source = good_source();
    set(source, "config.vector_bits", bits);
    first.push_back(cpu_compiler().compile(source).sha256);
  }
  std::vector<std::string> second(3);
  std::vector<std::jthread> threads;
  for (size_t i = 0; i < 3; ++i)
    threads.emplace_back([&, i] {
      KernelSource source = good_source();
      set(source, "config.vector_bits", widths[i]);
      second[i] = cpu_compiler().compile(source).sha256;
    });
  threads.clear();
  EXPECT_EQ(first, second);
  EXPECT_NE(first[0], first[2]);  // the width reaches the code
}

// Fault: code with calls that the loader does not allow, or with data that is set up at load time.
TEST(Objects, ListingsShowOneSelfContainedKernel) {
  const std::string ir = cpu_compiler().listing(good_source(), "ir");
  EXPECT_NE(ir.find("define void @pt_decode"), std::string::npos);
  EXPECT_EQ(ir.find("spec_head_dim"), std::string::npos);
  EXPECT_EQ(ir.find("GLOBAL__sub_I"), std::string::npos);
  EXPECT_NE(cpu_compiler().listing(good_source(), "asm").find("pt_merge:"), std::string::npos);
}

// Fault: a kernel for a processor without AVX-512 (or without F16C: conversion calls) does not link or computes something else.
TEST(Objects, OfOtherTargetsRunHere) {
  for (const char* arch : {"x86-64-v3", "x86-64-v2"}) {
    for (int dtype : {0, 1, 2}) {
      Shape shape;
      shape.dtype = dtype;
      shape.bits = 256;
      Target target;
      target.backend = Backend::cpu;
      target.arch = arch;
      target.vector_bits = 256;
      const auto module = device().load(cpu_compiler().compile(source_of(shape, target)));
      Problem problem(shape);
      problem.run(*module);
      EXPECT_EQ(problem.check(), "") << arch << " dtype " << dtype;
    }
  }
}

// Fault: a bit that flipped on disk reaches the linker.
TEST(Damage, EveryFlippedByteIsFound) {
  const std::string& good = good_binary().data;
  for (size_t i = 0; i < good.size(); i += i + 256 < good.size() ? 61 : 1) {
    std::string bad = good;
    bad[i] = static_cast<char>(bad[i] ^ 0x10);
    expect_error(ErrorCode::io, "compiled again", [&] { cpu_compiler().read_facts(bad); });
  }
}

// Fault: reading beyond a file that was cut short.
TEST(Damage, EveryCutIsFound) {
  const std::string& good = good_binary().data;
  for (size_t size : {size_t{0}, size_t{1}, size_t{11}, size_t{12}, size_t{64}, good.size() / 2, good.size() - 12, good.size() - 1}) {
    expect_error(ErrorCode::io, "compiled again", [&] { cpu_compiler().read_facts(good.substr(0, size)); });
    expect_error(ErrorCode::io, "compiled again", [&] { cpu_compiler().read_facts(good.substr(good.size() - size).substr(0, size / 2)); });
  }
  EXPECT_THROW(cpu_compiler().read_facts(good + " "), Error);
}

// A sealed object with other ELF bytes or another footer, and a checksum that fits: what the checksum cannot catch.
std::string resealed(const std::function<void(std::string& elf, nlohmann::json& footer)>& change) {
  const std::string& data = good_binary().data;
  const size_t tail = data.size() - 12;
  const size_t body = tail - 64;
  size_t length = 0;
  for (size_t i = 0; i < 4; ++i) length |= static_cast<size_t>(static_cast<unsigned char>(data[tail + i])) << (8 * i);
  std::string elf = data.substr(0, body - length);
  auto footer = nlohmann::json::parse(data.substr(body - length, length));
  change(elf, footer);
  footer["bytes"] = elf.size();
  const std::string text = footer.dump();
  std::string sealed = elf + text;
  sealed += sha256_hex(sealed);
  for (int shift = 0; shift < 32; shift += 8) sealed += static_cast<char>(text.size() >> shift & 0xff);
  return sealed + data.substr(tail + 4);
}

// Fault: LLVM's ELF reader, given nonsense, ends the process instead of giving an error.
TEST(Damage, NonsenseWithAGoodChecksumDoesNotCrash) {
  EXPECT_NO_THROW(cpu_compiler().read_facts(resealed([](auto&, auto&) {})));
  int refused = 0;
  for (size_t at = 0; at < 64; ++at) {  // the ELF header
    for (int mask : {0x01, 0x80, 0xFF}) {
      const std::string bad = resealed([&](std::string& elf, auto&) { elf[at] = static_cast<char>(elf[at] ^ mask); });
      try {
        cpu_compiler().read_facts(bad);  // some of its bytes carry no meaning
      } catch (const Error& error) {
        EXPECT_EQ(static_cast<int>(error.code()), static_cast<int>(ErrorCode::io));
        ++refused;
      }
    }
  }
  EXPECT_GT(refused, 30);
  for (size_t size : {0, 16, 64, 100, 500})
    expect_error(ErrorCode::io, "compiled again", [&] { cpu_compiler().read_facts(resealed([&](std::string& elf, auto&) { elf.resize(size); })); });
}

// Fault: an object of another LLVM or another template is used.
TEST(Damage, ObjectsOfAnotherCompilerAreRefused) {
  const std::string other = resealed([](auto&, nlohmann::json& footer) { footer["compiler"] = "llvm 18.1.0 bitcode 000000000000"; });
  expect_error(ErrorCode::io, "llvm 18.1.0", [&] { cpu_compiler().read_facts(other); });
  Binary binary = good_binary();
  binary.data = other;
  expect_error(ErrorCode::io, "llvm 18.1.0", [&] { device().load(binary); });
}

// Fault: launch parameters of another version, which only the object's facts tell.
TEST(Damage, OtherParametersAreRefused) {
  const std::string other = resealed([](std::string& elf, auto&) {
    const int size = sizeof(pt_decode_params);
    const int words[] = {size, static_cast<int>(PT_PARAMS_VERSION)};
    const std::string needle(reinterpret_cast<const char*>(words), sizeof words);
    elf[elf.find(needle)] ^= 8;
  });
  expect_error(ErrorCode::io, "launch parameters", [&] { cpu_compiler().read_facts(other); });
}

// Fault: an illegal instruction at the first launch, where a cache directory is shared by unlike machines.
TEST(Load, ObjectsForMoreThanThisCpuAreRefused) {
  Binary binary = good_binary();
  binary.data = resealed([](auto&, nlohmann::json& footer) { footer["cpu_features"] = "+avx2,+avx10.1-512"; });
  expect_error(ErrorCode::mismatch, "avx10.1-512", [&] { device().load(binary); });
  binary.kind = "cubin";
  expect_error(ErrorCode::mismatch, "cubin", [&] { device().load(binary); });
}

}  // namespace
}  // namespace pagetune::test
