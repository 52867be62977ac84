// NVRTC and cubins without a GPU: what is compiled, under which key, and that a damaged image is an error and never a crash.
#include <elf.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "codegen/default_config.hpp"
#include "codegen/space.hpp"
#include "codegen_testing.hpp"
#include "faults/processes.hpp"
#include "runtime/build.hpp"
#include "runtime/cuda/cubin.hpp"
#include "runtime/cuda/driver.hpp"
#include "runtime/cuda/library.hpp"
#include "runtime/cuda/nvrtc.hpp"
#include "store_samples.hpp"
#include "tuner/numeric.hpp"

namespace pagetune {
namespace {

KernelConfig config_of(const AttentionSpec& spec, const Target& target, int variant) {
  KernelConfig config = default_shape(spec, target);
  config.set("VARIANT", variant);
  config.set("NUM_SPLITS", variant == 1 ? 1 : 4);
  return config;
}

KernelSource source_of(const AttentionSpec& spec, const std::string& arch = "sm_90a", int variant = 1) {
  const Target target = Target::by_name(arch);
  return generate(spec, config_of(spec, target, variant), target);
}

// Fault: an error that a caller may repeat after (no memory, a bad argument, a launch that does not fit) ends the device for the process, or a fault of a
// kernel does not.
TEST(Driver, OnlyFaultsLoseTheContext_B170) {
  for (const int fault : {214, 220, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719}) EXPECT_TRUE(cuda::loses_context(fault)) << fault;
  for (const int error : {0, 1, 2, 3, 100, 101, 200, 201, 209, 218, 301, 400, 500, 600, 701, 703, 704, 708, 712, 713, 720, 801, 900, 901, 999}) EXPECT_FALSE(cuda::loses_context(error)) << error;
}

// NVRTC must be here: a machine that shall not have it says so.
class Nvrtc : public ::testing::Test {
 protected:
  void SetUp() override {
    const char* waived = std::getenv("PAGETUNE_NO_NVRTC");
    if (waived != nullptr && std::string(waived) == "1") GTEST_SKIP() << "PAGETUNE_NO_NVRTC=1: this machine has no NVRTC";
    try {
      cuda::nvrtc();
    } catch (const Error& error) {
      FAIL() << error.what() << "\nIf this machine shall not have NVRTC, say so with PAGETUNE_NO_NVRTC=1.";
    }
  }
  static const std::string& cubin() {
    static const std::string data = cuda::nvrtc().compile(source_of(testing::decode_spec(8, 2, 64), "sm_90a", 2)).data;
    return data;
  }
};

bool same(const LaunchFacts& a, const LaunchFacts& b) { return std::memcmp(&a, &b, sizeof a) == 0; }  // ints only: no padding

// Facts or Error io; anything else, a crash above all, is a failure.
enum class Read { facts, error };
Read read_damaged(const std::string& data) {
  try {
    cuda::read_cubin(data, "pt_decode");
    cuda::kernels_of(data);
    return Read::facts;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::io) << error.what();
    testing::expect_mentions(error.what(), {"damaged cubin: "});
    return Read::error;
  }
}

// Fault: a length or an offset in the image is trusted, and a half-written file crashes the engine.
TEST_F(Nvrtc, TruncatedCubinsAreErrors) {
  const std::string& whole = cubin();
  int errors = 0, count = 0;
  const auto cut = [&](size_t size) {
    ++count;
    errors += read_damaged(whole.substr(0, size)) == Read::error;
  };
  for (size_t size = 0; size < 300; ++size) cut(size);
  for (size_t size = 300; size < whole.size(); size += 61) cut(size);
  for (size_t left = 1; left < 200 && left < whole.size(); ++left) cut(whole.size() - left);
  EXPECT_EQ(errors, count) << "a truncated image was taken for whole";
  EXPECT_EQ(read_damaged(std::string(5000, '\0')), Read::error);
  EXPECT_EQ(read_damaged("\x7f" "ELF"), Read::error);
}

// Fault: the same, for bits that rot. Every byte of the header and of the section table takes the extreme values, then thousands of
// random bytes anywhere.
TEST_F(Nvrtc, FlippedBytesNeverCrash) {
  const std::string& whole = cubin();
  std::string data = whole;
  int errors = 0;
  const auto with = [&](size_t at, char value) {
    data[at] = value;
    errors += read_damaged(data) == Read::error;
    data[at] = whole[at];
  };
  for (size_t at = 0; at < sizeof(Elf64_Ehdr); ++at)
    for (int value = 0; value < 256; ++value) with(at, static_cast<char>(value));
  Elf64_Ehdr header;
  std::memcpy(&header, whole.data(), sizeof header);
  const size_t table_end = std::min<size_t>(whole.size(), header.e_shoff + size_t{header.e_shnum} * sizeof(Elf64_Shdr));
  for (size_t at = header.e_shoff; at < table_end; ++at)
    for (const int value : {0, 1, 0x7f, 0x80, 0xff}) with(at, static_cast<char>(value));
  for (size_t s = 0; s < header.e_shnum; ++s) {  // symbols and attributes, byte by byte
    Elf64_Shdr section;
    std::memcpy(&section, whole.data() + header.e_shoff + s * sizeof section, sizeof section);
    if (section.sh_type != SHT_SYMTAB && section.sh_type != 0x70000000 /* .nv.info */) continue;
    for (size_t at = section.sh_offset; at < section.sh_offset + section.sh_size; ++at)
      for (const int value : {0, 0x80, 0xff}) with(at, static_cast<char>(value));
  }
  EXPECT_GT(errors, 1000);
  Random random(17);
  for (int i = 0; i < 5000; ++i) {
    const auto at = static_cast<size_t>(random.below(static_cast<int>(whole.size())));
    with(at, static_cast<char>(whole[at] ^ (1 + random.below(255))));
  }
  for (int i = 0; i < 1000; ++i) {  // several at once
    std::string many = whole;
    for (int flips = 0; flips < 20; ++flips) many[static_cast<size_t>(random.below(static_cast<int>(many.size())))] = static_cast<char>(random.below(256));
    read_damaged(many);
  }
  EXPECT_EQ(read_damaged(data), Read::facts) << "the image itself must be readable";
}

// Fault: host and device disagree on threads, shared memory or the number of heads, and a launch covers another grid than the kernel expects.
TEST_F(Nvrtc, FactsAreThoseThatWereAskedFor) {
  const Target target = Target::by_name("sm_90a");
  for (const AttentionSpec& spec : {testing::decode_spec(8, 2, 64), testing::decode_spec(71, 1, 128, 7, DType::fp16), testing::decode_spec(16, 16, 256)}) {
    for (const auto& [variant, merge, quarters] : {std::tuple{1, 0, 0}, {2, 0, 0}, {2, 1, 0}, {2, 1, 4}, {2, 2, 0}}) {
      for (const int warps : {1, 2, 4}) {
        KernelConfig config = config_of(spec, target, variant);
        config.set("NUM_WARPS", warps);
        config.set("MERGE", merge);
        config.set("CTA_QUARTERS", quarters);
        if (quarters > 0) config.set("NUM_SPLITS", 1);
        SCOPED_TRACE(canonical_json(spec) + config.canonical_json());
        const Binary binary = cuda::nvrtc().compile(generate(spec, config, target));
        const LaunchFacts facts = cuda::read_cubin(binary.data, "pt_decode");
        EXPECT_TRUE(same(facts, binary.facts));
        EXPECT_EQ(facts.params_size, static_cast<int>(sizeof(pt_decode_params)));
        EXPECT_EQ(facts.params_version, static_cast<int>(PT_PARAMS_VERSION));
        EXPECT_EQ(facts.variant, variant);
        const int producers = config.at("LOADER") == 2 ? (warps % 2 == 0 ? 2 : 1) : 0;  // of 1, 2 or 4 warps
        EXPECT_EQ(facts.threads, (warps + producers) * 32) << "producer warps beside those that compute";
        EXPECT_EQ(facts.tile_tokens, config.at("TILE_KV"));
        EXPECT_EQ(facts.rows_per_cta, std::min(spec.group_size(), 16));
        EXPECT_EQ(facts.head_tiles, (spec.group_size() + 15) / 16);
        EXPECT_EQ(facts.kv_heads, spec.kv_heads);
        EXPECT_EQ(facts.q_heads, spec.q_heads);
        EXPECT_EQ(facts.merge_threads > 0, variant == 2 && merge == 0);
        EXPECT_EQ(facts.shared_bytes, ConfigSpace::builtin().derived("SHARED_BYTES", spec, config, target)) << "what the space prunes by is not what the kernel uses";
        EXPECT_GT(facts.registers, 16);
        EXPECT_LE(facts.registers, 255);
        auto kernels = cuda::kernels_of(binary.data);
        std::sort(kernels.begin(), kernels.end());
        EXPECT_EQ(kernels, merge != 0 || variant == 1 ? std::vector<std::string>{"pt_decode"} : (std::vector<std::string>{"pt_decode", "pt_merge"}));
      }
    }
  }
}

// Passes everything on to NVRTC but breaks the source, if asked to, and counts.
class Meddler final : public Compiler {
 public:
  bool breaks = false;
  int compiles = 0;
  std::string identity() const override { return cuda::nvrtc().identity(); }
  Binary compile(const KernelSource& source) override {
    ++compiles;
    KernelSource changed = source;
    if (breaks) changed.text += "\n#error \"broken on purpose\"\n";
    return cuda::nvrtc().compile(changed);
  }
  LaunchFacts read_facts(const std::string& data) override { return cuda::nvrtc().read_facts(data); }
  std::string listing(const KernelSource& source, const std::string& stage) override { return cuda::nvrtc().listing(source, stage); }
};

// Fault (B161): a failed compile loses the compiler's log, stores half a kernel, or is remembered for ever.
TEST_F(Nvrtc, AFailedCompileCarriesTheLogAndStoresNothing) {
  const TempDir dir;
  const auto store = Store::open(dir.path());
  const AttentionSpec spec = testing::decode_spec(8, 2, 64);
  const Target target = Target::by_name("sm_90a");
  const KernelConfig config = config_of(spec, target, 1);
  Meddler compiler;
  compiler.breaks = true;
  for (int attempt = 0; attempt < 2; ++attempt) {
    const std::string message = testing::error_text([&] { build_binary(compiler, *store, spec, config, target); }, ErrorCode::compile_failed);
    testing::expect_mentions(message, {"pt_decode", "sm_90a", "error", "broken on purpose"});
    EXPECT_EQ(store->usage().binaries, 0);
  }
  EXPECT_EQ(compiler.compiles, 2);
  compiler.breaks = false;
  const Binary binary = build_binary(compiler, *store, spec, config, target);
  EXPECT_EQ(binary.key, binary_key(source_of(spec), compiler.identity()));
  EXPECT_EQ(store->usage().binaries, 1);
  build_binary(compiler, *store, spec, config, target);
  EXPECT_EQ(compiler.compiles, 3);
}

// Fault (B164): a KV dtype without a kernel costs a compile whose error nobody understands, or reads bytes as another type.
TEST_F(Nvrtc, Fp8IsRefusedBeforeAnyCompile) {
  AttentionSpec spec = testing::decode_spec(8, 2, 64);
  const Target target = Target::by_name("sm_90a");
  const KernelConfig config = config_of(spec, target, 1);
  spec.kv_dtype = DType::fp8_e4m3;
  Meddler compiler;
  const auto store = Store::open(":memory:");
  const std::string message = testing::error_text([&] { build_binary(compiler, *store, spec, config, target); }, ErrorCode::unsupported);
  testing::expect_mentions(message, {"fp8_e4m3"});
  EXPECT_EQ(compiler.compiles, 0);
  EXPECT_EQ(store->counters().compiles, 0u);
}

// Fault (B163): the suffix of an architecture is lost on the way, and kernels of sm_90 and sm_90a answer for one another.
TEST_F(Nvrtc, EveryArchitectureSuffixIsABinaryOfItsOwn) {
  const std::vector<std::string> names = {"sm_90", "90a", "100a", "103a", "120", "120a"};
  std::set<std::string> keys, images, archs;
  for (const auto& name : names) {
    const KernelSource source = source_of(testing::decode_spec(8, 2, 64), name);
    const Binary binary = cuda::nvrtc().compile(source);
    EXPECT_EQ(binary.arch, name.starts_with("sm_") ? name : "sm_" + name);
    EXPECT_NE(std::find(source.options.begin(), source.options.end(), "--gpu-architecture=" + binary.arch), source.options.end());
    EXPECT_EQ(binary.kind, "cubin");
    keys.insert(binary.key);
    images.insert(binary.sha256);
    archs.insert(binary.arch);
  }
  EXPECT_EQ(keys.size(), names.size());
  EXPECT_EQ(images.size(), names.size());
  EXPECT_EQ(archs.size(), names.size());
}

// Fault (B146): the key of one source changes from call to call (an address, a time, a map's order) and nothing is ever found again.
TEST(BinaryKey, TheSameSourceHasTheSameKey) {
  const AttentionSpec spec = testing::decode_spec(8, 2, 64);
  EXPECT_EQ(binary_key(source_of(spec), "nvrtc 1"), binary_key(source_of(spec), "nvrtc 1"));
  // The number of splits belongs to the launch.
  const Target target = Target::by_name("sm_90a");
  KernelConfig config = config_of(spec, target, 2);
  const std::string key = binary_key(generate(spec, config, target), "nvrtc 1");
  config.set("NUM_SPLITS", 16);
  EXPECT_EQ(binary_key(generate(spec, config, target), "nvrtc 1"), key);
}

// Fault: something that the compile depends on is not in the key, and a stale binary is served.
TEST(BinaryKey, EveryInputChangesTheKey) {
  const KernelSource source = source_of(testing::decode_spec(8, 2, 64));
  std::set<std::string> keys = {binary_key(source, "nvrtc 1")};
  size_t expected = 1;
  const auto add = [&](auto&& change, const std::string& identity = "nvrtc 1") {
    KernelSource changed = source;
    change(changed);
    keys.insert(binary_key(changed, identity));
    EXPECT_EQ(keys.size(), ++expected);
  };
  for (size_t i = 0; i < source.constants.size(); ++i) {
    add([&](KernelSource& s) { ++s.constants[i].second; });
    add([&](KernelSource& s) { s.constants[i].first += "x"; });
  }
  for (size_t i = 0; i < source.options.size(); ++i) add([&](KernelSource& s) { s.options[i] += "x"; });
  add([](KernelSource& s) { s.options.pop_back(); });
  add([](KernelSource& s) { s.arch = "sm_90"; });
  add([](KernelSource& s) { s.cpu_features = "+avx2"; });
  add([](KernelSource& s) { s.backend = Backend::cpu; });
  add([](KernelSource& s) { s.text += ' '; });
  add([](KernelSource& s) { s.template_hash[0] = s.template_hash[0] == '0' ? '1' : '0'; });
  add([](KernelSource& s) { s.entries.emplace_back("pt_merge"); });
  add([](KernelSource&) {}, "nvrtc 2");
}

// Fault: parts are joined without their lengths, and two different lists read the same.
TEST(BinaryKey, PartsCannotRunIntoOneAnother) {
  const std::vector<std::vector<std::string>> lists = {{"a|b", "c"}, {"a", "b|c"}, {"ab", "c"}, {"a", "bc"}, {"abc"}, {"abc", ""}, {"", "abc"}, {"a", "b", "c"},
                                                       {"1:a", "b"}, {"1", ":ab"}, {"a1:b"}, {"a\n", "b"}, {"a", "\nb"}};
  std::set<std::string> keys;
  for (const auto& list : lists) {
    KernelSource source = source_of(testing::decode_spec(8, 2, 64));
    source.options = list;
    keys.insert(binary_key(source, "nvrtc"));
  }
  EXPECT_EQ(keys.size(), lists.size());
  KernelSource a = source_of(testing::decode_spec(8, 2, 64)), b = a;
  a.arch = "sm_9", a.cpu_features = "0a";
  b.arch = "sm_90", b.cpu_features = "a";
  EXPECT_NE(binary_key(a, "nvrtc"), binary_key(b, "nvrtc"));
  // An option moved to the entries.
  a = b;
  a.entries = {"pt_decode", "x"}, a.options = {"y"};
  b.entries = {"pt_decode"}, b.options = {"x", "y"};
  EXPECT_NE(binary_key(a, "nvrtc"), binary_key(b, "nvrtc")) << "an entry and an option are one list";
}

std::string helper() { return std::filesystem::read_symlink("/proc/self/exe").parent_path() / "runtime_helper"; }

struct Ran {
  int status = -1;
  std::string out;
};
// The helper's "compile" in an environment of its own: `changes` are arguments of env(1).
Ran compile_elsewhere(const std::vector<std::string>& changes) {
  const TempDir dir;
  std::vector<std::string> command = {"/usr/bin/env"};
  command.insert(command.end(), changes.begin(), changes.end());
  command.insert(command.end(), {helper(), "compile", "sm_90a"});
  Herd herd;
  const pid_t pid = herd.start(command, dir / "out");
  herd.go();
  const int status = wait_for(pid);
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, read_file(dir / "out")};
}

// Fault (B160): the compile reads the toolkit's headers, and a machine without a toolkit, or with another one, makes other kernels.
TEST_F(Nvrtc, CompilesNeedNoToolkit) {
  const Ran usual = compile_elsewhere({});
  ASSERT_EQ(usual.status, 0) << usual.out;
  EXPECT_GT(usual.out.size(), 130u);
  for (const std::vector<std::string>& changes : {std::vector<std::string>{"-u", "CUDA_HOME", "-u", "CUDA_PATH", "-u", "CPATH"}, {"CUDA_HOME=/nonexistent/cuda", "CUDA_PATH=/nonexistent/cuda"}}) {
    const Ran other = compile_elsewhere(changes);
    EXPECT_EQ(other.status, 0) << changes.back();
    EXPECT_EQ(other.out, usual.out) << changes.back();
  }
}

// Fault: the driver's own cache, which a user may have turned off, is part of a kernel or of its key.
TEST_F(Nvrtc, TheDriversCacheChangesNothing) {
  const Ran usual = compile_elsewhere({"-u", "CUDA_CACHE_DISABLE"});
  ASSERT_EQ(usual.status, 0) << usual.out;
  for (const char* change : {"CUDA_CACHE_DISABLE=0", "CUDA_CACHE_DISABLE=1"}) {
    const Ran other = compile_elsewhere({change});
    EXPECT_EQ(other.status, 0) << change;
    EXPECT_EQ(other.out, usual.out) << change;
  }
}

// Fault: an NVRTC that was asked for by name is replaced by another without a word; a missing one crashes or says nothing of where it was looked for.
TEST(NvrtcLibrary, AWrongOneIsAnErrorThatNamesTheFile) {
  const Ran absent = compile_elsewhere({"PAGETUNE_NVRTC=/nonexistent/libnvrtc.so.13"});
  EXPECT_EQ(absent.status, 5);
  testing::expect_mentions(absent.out, {"error 5: ", "NVRTC", "PAGETUNE_NVRTC", "/nonexistent/libnvrtc.so.13"});
  const Ran other = compile_elsewhere({"PAGETUNE_NVRTC=libc.so.6"});
  EXPECT_EQ(other.status, 5);
  testing::expect_mentions(other.out, {"error 5: ", "nvrtcVersion", "NVRTC 12"});
}

TEST(NvrtcLibrary, EveryPathThatWasTriedIsNamed) {
  std::string tried;
  EXPECT_EQ(cuda::open_library({"libpagetune_absent_a.so", "/nonexistent/b.so.1", "/dev/null"}, tried), nullptr);
  testing::expect_mentions(tried, {"libpagetune_absent_a.so", "/nonexistent/b.so.1", "/dev/null"});
  tried.clear();
  EXPECT_NE(cuda::open_library({"/nonexistent/b.so.1", "libc.so.6"}, tried), nullptr) << tried;
}

}  // namespace
}  // namespace pagetune
