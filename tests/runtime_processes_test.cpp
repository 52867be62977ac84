// Many processes on one cache directory, as the ranks of a cold start: real kernels, real launches, on the device under test.
#include <SQLiteCpp/SQLiteCpp.h>
#include <signal.h>

#include <filesystem>
#include <map>
#include <sstream>
#include <thread>

#include "attention_support.hpp"
#include "cache_db/store.hpp"
#include "faults/processes.hpp"
#include "runtime_binaries.hpp"
#include "store_samples.hpp"
#include "tuner/numeric.hpp"

namespace pagetune::testing_support {
namespace {

constexpr int kProcesses = 16;

std::string helper() { return std::filesystem::read_symlink("/proc/self/exe").parent_path() / "runtime_helper"; }

// What one process printed.
struct Served {
  std::vector<std::string> digests;
  int64_t compiles = -1, corrupt = -1;
};

Served parse(const std::string& path) {
  Served served;
  std::istringstream lines(read_file(path));
  std::string word, value;
  while (lines >> word >> value) {
    if (word == "digest") served.digests.push_back(value);
    if (word == "compiles") served.compiles = std::stoll(value);
    if (word == "corrupt") served.corrupt = std::stoll(value);
  }
  return served;
}

class Processes : public DeviceTest {
 protected:
  std::string cache() const { return dir_ / "cache"; }
  std::string output(int process) const { return dir_ / std::to_string(process); }
  pid_t start(Herd& herd, int process) const { return herd.start({helper(), "serve", test_device_id(), cache()}, output(process)); }

  // expected_status: of the helper; 4 says that the store had something to report.
  Served serve_once(int expected_status = 0) const {
    Herd herd;
    const pid_t pid = start(herd, kProcesses);
    herd.go();
    const int status = wait_for(pid);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == expected_status) << status << ": " << read_file(output(kProcesses));
    return parse(output(kProcesses));
  }

 private:
  const TempDir dir_;
};

// Fault: ranks of a cold start compile one kernel twice, load a half-written one, or run different kernels.
class ColdStart : public Processes, public ::testing::WithParamInterface<int> {};
TEST_P(ColdStart, SixteenProcessesCompileEachKernelOnceAndAreRight) {
  std::vector<pid_t> pids;
  {
    Herd herd;
    for (int p = 0; p < kProcesses; ++p) pids.push_back(start(herd, p));
    herd.go();
  }
  for (int p = 0; p < kProcesses; ++p) EXPECT_EQ(wait_for(pids[static_cast<size_t>(p)]), 0) << read_file(output(p));
  const Served first = parse(output(0));
  ASSERT_EQ(first.digests.size(), served_specs().size());
  int64_t compiles = 0;
  for (int p = 0; p < kProcesses; ++p) {
    const Served served = parse(output(p));
    EXPECT_EQ(served.digests, first.digests) << p;
    EXPECT_EQ(served.corrupt, 0) << p;
    ASSERT_GE(served.compiles, 0) << p;
    compiles += served.compiles;
  }
  const int64_t binaries = Store::open(cache())->usage().binaries;
  EXPECT_EQ(binaries, binaries_of(device(), served_specs()));
  EXPECT_GE(binaries, 2 * static_cast<int64_t>(served_specs().size())) << "V1 and V2 of each spec";
  EXPECT_EQ(compiles, binaries);
}
INSTANTIATE_TEST_SUITE_P(Rounds, ColdStart, ::testing::Values(1, 2, 3));

// Fault: the variable is read as a number, or its absence of devices as device 0. The driver reads it, and what it hides is absent.
TEST_F(Processes, WhatCudaVisibleDevicesHidesIsAbsent_B169) {
  if (sanitized()) GTEST_SKIP() << "compute-sanitizer itself ends a process that sees no device";
  int process = 0;
  for (const char* value : {"", "-1", "MIG-c6d4f1ef-42e4-5de3-91c7-45d71c87eb3f", "GPU-00000000"}) {
    Herd herd;
    const pid_t pid = herd.start({"/usr/bin/env", std::string("CUDA_VISIBLE_DEVICES=") + value, helper(), "serve", "cuda:0", cache()}, output(process));
    herd.go();
    const int status = wait_for(pid);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 5) << status << " with '" << value << "'";
    EXPECT_NE(read_file(output(process++)).find("error 5:"), std::string::npos) << "'" << value << "': no_device is due";
  }
}

// Fault: after an illegal access every call returns the driver's last error, whatever it asks, and a server goes on answering with errors for hours.
// What is due is one code and a sentence that says what to do.
TEST_F(Processes, AContextThatAKernelsFaultTookIsNamed_B170) {
  if (test_device_id() == "cpu") GTEST_SKIP() << "a CPU has no context to lose";
  if (sanitized()) GTEST_SKIP() << "the fault is meant";
  Herd herd;
  const pid_t pid = herd.start({helper(), "fault", test_device_id(), cache()}, output(0));
  herd.go();
  const int status = wait_for(pid);
  const std::string said = read_file(output(0));
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status << ": " << said;
  for (const char* line : {"call 0: error 11: ", "call 1: error 11: ", "call 2: error 11: ", "call 3: error 11: ", "allocate: error 11"}) EXPECT_NE(said.find(line), std::string::npos) << line << " is due: " << said;
  EXPECT_NE(said.find("start a new one"), std::string::npos) << said;
}

// Fault: a process that dies while it compiles or publishes leaves a lock, half a binary, or a file that the others cannot use.
TEST_F(Processes, KilledOnesLeaveTheOthersRight) {
  std::vector<pid_t> pids;
  {
    Herd herd;
    for (int p = 0; p < kProcesses; ++p) pids.push_back(start(herd, p));
    herd.go();
  }
  Random random(23);
  for (int p = 0; p < kProcesses; p += 2) {
    std::this_thread::sleep_for(std::chrono::milliseconds(random.below(250)));
    kill(pids[static_cast<size_t>(p)], SIGKILL);
  }
  int killed = 0;
  for (int p = 0; p < kProcesses; ++p) {
    const int status = wait_for(pids[static_cast<size_t>(p)]);
    if (p % 2 == 0 && WIFSIGNALED(status)) {
      EXPECT_EQ(WTERMSIG(status), SIGKILL);
      ++killed;
      continue;
    }
    EXPECT_EQ(status, 0) << p << ": " << read_file(output(p));
    EXPECT_EQ(parse(output(p)).digests.size(), served_specs().size()) << p;
  }
  EXPECT_GT(killed, 0) << "the processes were done before they were killed";
  const Served later = serve_once();
  EXPECT_EQ(later.compiles, 0);
  EXPECT_EQ(later.corrupt, 0);
  EXPECT_EQ(later.digests, parse(output(1)).digests);
}

// Fault: what is stored with the driver's own cache turned on is not found, or does not load, where it is off; or the reverse.
TEST_F(Processes, TheDriversCacheMayBeOnOrOff) {
  std::vector<std::string> digests;
  for (int process = 0; process < 4; ++process) {
    Herd herd;
    const pid_t pid = herd.start(with_variables({process % 2 == 0 ? "CUDA_CACHE_DISABLE=1" : "CUDA_CACHE_DISABLE=0"}, {helper(), "serve", test_device_id(), process < 3 ? cache() : cache() + "-of-another"}), output(process));
    herd.go();
    EXPECT_EQ(wait_for(pid), 0) << read_file(output(process));
    const Served served = parse(output(process));
    EXPECT_EQ(served.compiles, process == 1 || process == 2 ? 0 : binaries_of(device(), served_specs())) << process;
    if (process == 0) digests = served.digests;
    EXPECT_EQ(served.digests, digests) << process;
  }
}

// Fault: a second process does not find what the first compiled.
// Fault: a stored kernel whose bits have rotted is loaded, is an error, or is found damaged again at every start.
TEST_F(Processes, ADamagedBinaryIsRebuiltOnce) {
  EXPECT_EQ(serve_once().compiles, binaries_of(device(), served_specs()));
  const Served again = serve_once();
  EXPECT_EQ(again.compiles, 0);
  EXPECT_EQ(again.corrupt, 0);
  {
    SQLite::Database db(cache() + "/kernels.db", SQLite::OPEN_READWRITE);
    SQLite::Statement read(db, "SELECT binary_key, data FROM blob ORDER BY binary_key LIMIT 1");
    ASSERT_TRUE(read.executeStep());
    const std::string key = read.getColumn(0).getString();
    std::string data = read.getColumn(1).getString();
    read.reset();
    data[data.size() / 2] = static_cast<char>(data[data.size() / 2] ^ 0x10);
    SQLite::Statement write(db, "UPDATE blob SET data = ? WHERE binary_key = ?");
    write.bind(1, data.data(), static_cast<int>(data.size()));
    write.bind(2, key);
    ASSERT_EQ(write.exec(), 1);
  }
  const Served rebuilt = serve_once(4);
  EXPECT_EQ(rebuilt.compiles, 1);
  EXPECT_EQ(rebuilt.corrupt, 1);
  EXPECT_EQ(rebuilt.digests, again.digests);
  const Served after = serve_once();
  EXPECT_EQ(after.compiles, 0);
  EXPECT_EQ(after.corrupt, 0);
}

}  // namespace
}  // namespace pagetune::testing_support
