// The other processes of the fault tests. Each verb waits until its standard input ends, so that many of them start together.
#include <fcntl.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>

#include "answers.hpp"
#include "cache_db/merge.hpp"
#include "cache_db/source.hpp"

using namespace pagetune;

namespace {

void wait_for_start() {
  char byte;
  while (read(STDIN_FILENO, &byte, 1) > 0) {
  }
}

void append(const std::string& path, const std::string& line) {
  int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  if (fd < 0 || write(fd, line.data(), line.size()) != static_cast<ssize_t>(line.size())) std::abort();
  close(fd);
}

// Data that only this process would make: equal bytes in all processes prove that one of them compiled for all.
Binary compiled_here(const std::string& name) {
  Binary binary = sample_binary(name, 50'000);
  binary.data += std::to_string(getpid());
  binary.sha256 = sha256_hex(binary.data);
  return binary;
}

int compile(const std::string& dir, const std::string& log, int kernels, int milliseconds) {
  auto store = Store::open(dir);
  for (int i = 0; i < kernels; ++i) {
    std::string name = "kernel" + std::to_string(i);
    Binary binary = store->get_or_compile(sha256_hex(name), [&] {
      append(log, name + "\n");
      std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
      return compiled_here(name);
    });
    if (sha256_hex(binary.data) != binary.sha256) return 3;
    std::printf("%s %s\n", name.c_str(), binary.sha256.c_str());
    std::fflush(stdout);
  }
  for (const auto& problem : store->problems()) std::fprintf(stderr, "%s\n", problem.c_str());
  return store->problems().empty() ? 0 : 4;
}

int hold(const std::string& dir, const std::string& log) {
  Store::open(dir)->get_or_compile(sha256_hex("held"), [&]() -> Binary {
    append(log, "compiling\n");
    while (true) pause();
  });
  return 0;
}

int write_winners(const std::string& dir, int writer, int count) {
  auto store = Store::open(dir);
  AttentionSpec spec;
  spec.q_heads = 8 * (writer + 1);
  for (int i = 0; i < count; ++i) put(*store, sample_row({i / Bucket::kLenCells, Bucket::kMinLenLog2 + i % Bucket::kLenCells}, spec));
  for (const auto& problem : store->problems()) std::fprintf(stderr, "%s\n", problem.c_str());
  return store->problems().empty() ? 0 : 4;
}

int publish_for_ever(const std::string& dir, const std::string& log) {
  auto store = Store::open(dir);
  for (int i = 0;; ++i) {
    put(*store, published_row(i));
    store->put_binary(published_binary(i));
    append(log, std::to_string(i) + "\n");
  }
}

int merge(const std::string& dir, const std::string& log, int sources, char** source) {
  auto store = Store::open(dir);
  const MergeRule rule{[](const Store::Row&) { return true; }, [](const std::string&) { return true; }};
  for (int i = 0; i < sources; ++i) {
    if (!store->merge({read_source(source[i]).content}, rule)) return 5;
    append(log, std::to_string(i) + "\n");
  }
  return 0;
}

// Exit status 0 for right answers; what went wrong on the way goes to the output, a line each.
int answer(const std::string& dir) {
  auto store = Store::open(dir);
  const std::string wrong = wrong_answers(*store);
  for (const auto& problem : store->problems()) std::printf("%s\n", problem.c_str());
  if (!wrong.empty()) std::fprintf(stderr, "%s\n", wrong.c_str());
  return wrong.empty() ? 0 : 3;
}

}  // namespace

int main(int argc, char** argv) {
  wait_for_start();
  std::string verb = argc > 2 ? argv[1] : "";
  if (verb == "answers") return answer(argv[2]);
  if (verb == "compile" && argc == 6) return compile(argv[2], argv[3], std::atoi(argv[4]), std::atoi(argv[5]));
  if (verb == "hold" && argc == 4) return hold(argv[2], argv[3]);
  if (verb == "write" && argc == 5) return write_winners(argv[2], std::atoi(argv[3]), std::atoi(argv[4]));
  if (verb == "publish" && argc == 4) return publish_for_ever(argv[2], argv[3]);
  if (verb == "merge" && argc > 4) return merge(argv[2], argv[3], argc - 4, argv + 4);
  std::fprintf(stderr, "usage: store_helper compile DIR LOG N MILLISECONDS | hold DIR LOG | write DIR WRITER N | publish DIR LOG | merge DIR LOG SOURCE... | answers DIR\n");
  return 2;
}
