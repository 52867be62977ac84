// The CPU as a Device, and how its library is found.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <thread>

#include "cpu_problem.hpp"
#include "pagetune/error.hpp"
#include "runtime/cpu_provider.hpp"

namespace pagetune::test {
namespace {

// Restores a variable of the environment at the end of a test.
class Variable {
 public:
  Variable(const char* name, const char* value) : name_(name) {
    if (const char* old = std::getenv(name)) old_ = old;
    setenv(name, value, 1);
  }
  ~Variable() { old_.empty() ? unsetenv(name_) : setenv(name_, old_.c_str(), 1); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  const char* name_;
  std::string old_;
};

// Must be the first in this program to ask for the library. Fault: a wrong path in the variable is passed over in silence, or one
// failure is remembered for ever.
TEST(Library, AWrongPathIsNamedAndCanBeCorrected) {
  {
    const Variable path("PAGETUNE_CPU_BACKEND", "/nowhere/libpagetune_cpu.so");
    try {
      cpu_compiler();
      FAIL() << "a library that does not exist was opened";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::no_device);
      EXPECT_NE(std::string(error.what()).find("/nowhere/libpagetune_cpu.so"), std::string::npos) << error.what();
    }
  }
  {
    const Variable path("PAGETUNE_CPU_BACKEND", "libm.so.6");
    try {
      cpu_compiler();
      FAIL() << "a library without the entry was taken";
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("pagetune_cpu_open"), std::string::npos) << error.what();
    }
  }
  EXPECT_EQ(cpu_compiler().identity().rfind("llvm 19.", 0), 0u) << cpu_compiler().identity();
}

// Fault: a number of threads that is none is read as something.
TEST(Threads, TheVariableIsChecked) {
  for (const char* bad : {"0", "-1", "two", "3x", "100000", "99999999999999999999"}) {
    const Variable threads("PAGETUNE_CPU_THREADS", bad);
    try {
      open_cpu_device();
      FAIL() << bad;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
      EXPECT_NE(std::string(error.what()).find(bad), std::string::npos);
    }
  }
  const Variable threads("PAGETUNE_CPU_THREADS", "3");
  EXPECT_EQ(open_cpu_device()->environment().processors, 3);
  EXPECT_EQ(open_cpu_device(2)->environment().processors, 2);
  EXPECT_THROW(open_cpu_device(-1), Error);
  EXPECT_THROW(open_cpu_device(1025), Error);
}

// Fault: fields that identify winners are empty or change from call to call.
TEST(Environment, IsCompleteAndStable) {
  const Environment& environment = device().environment();
  const Target& target = device().target();
  EXPECT_EQ(device().id(), "cpu");
  EXPECT_EQ(environment.backend, "cpu");
  EXPECT_FALSE(environment.device.empty());
  EXPECT_EQ(environment.arch, target.arch);
  EXPECT_EQ(environment.cpu_features, target.cpu_features);
  EXPECT_EQ(environment.compiler, "llvm 19.1");
  EXPECT_GT(environment.memory_bytes, 0);
  EXPECT_GE(environment.l2_bytes, 0);
  EXPECT_EQ(target.backend, Backend::cpu);
  EXPECT_EQ(target.processors, environment.processors);
  EXPECT_TRUE(target.vector_bits == 128 || target.vector_bits == 256 || target.vector_bits == 512);
  EXPECT_EQ(target.cpu_features.rfind('+', 0), 0u);
  std::vector<std::string> names;
  for (size_t at = 0; at < target.cpu_features.size();) {
    const size_t end = std::min(target.cpu_features.find(',', at), target.cpu_features.size());
    names.push_back(target.cpu_features.substr(at, end - at));
    at = end + 1;
  }
  EXPECT_TRUE(std::is_sorted(names.begin(), names.end()));
  EXPECT_EQ(open_cpu_device()->environment(), environment);
}

// Fault: memory that is not aligned as promised, or an allocation failure that is not an Error.
TEST(Memory, IsAlignedAndFailuresAreErrors) {
  for (size_t bytes : {size_t{0}, size_t{1}, size_t{1000}, size_t{1} << 20}) {
    void* memory = device().allocate(bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(memory) % 256, 0u);
    device().release(memory);
  }
  EXPECT_GT(device().free_bytes(), 0u);
  const std::string text = "page";
  std::string copy(4, ' ');
  void* memory = device().allocate(4);
  device().upload(memory, text.data(), 4);
  device().download(copy.data(), memory, 4);
  EXPECT_EQ(copy, text);
  device().release(memory);
}

// Fault: random data that is constant, out of range, skewed, or other for the same seed.
TEST(Memory, RandomDataIsUniform) {
  constexpr int kCount = 20000;
  const std::pair<DType, int> types[] = {{DType::bf16, 0}, {DType::fp16, 1}, {DType::fp32, 2}};
  for (const auto& [type, code] : types) {
    const size_t size = code == 2 ? 4 : 2;
    std::vector<unsigned char> bytes(kCount * size), again(kCount * size), other(kCount * size);
    device().fill_random(bytes.data(), bytes.size(), type, 1);
    device().fill_random(again.data(), again.size(), type, 1);
    device().fill_random(other.data(), other.size(), type, 2);
    EXPECT_EQ(bytes, again);
    EXPECT_NE(bytes, other);
    double sum = 0, squares = 0;
    for (size_t i = 0; i < kCount; ++i) {
      const double value = element(code, bytes.data() + i * size);
      ASSERT_GE(value, -2.0);
      ASSERT_LT(value, 2.0);
      sum += value;
      squares += value * value;
    }
    EXPECT_NEAR(sum / kCount, 0.0, 0.05);
    EXPECT_NEAR(squares / kCount, 4.0 / 3.0, 0.05);  // of a uniform distribution on [-2, 2)
  }
  EXPECT_THROW(device().fill_random(nullptr, 0, DType::int4, 1), Error);
}

// Fault: a recording that runs the calls when it is made, or not when it is replayed.
TEST(Recording, RunsTheCallsOncePerReplay) {
  int calls = 0;
  auto recording = device().record([&](void* stream) {
    EXPECT_EQ(stream, nullptr);
    ++calls;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  });
  EXPECT_EQ(calls, 0);
  EXPECT_GE(recording->replay_us(), 2000.0);
  EXPECT_EQ(calls, 1);
  EXPECT_FALSE(device().capturing(nullptr));
}

}  // namespace
}  // namespace pagetune::test
