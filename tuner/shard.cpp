#include "tuner/shard.hpp"

#include <algorithm>
#include <map>
#include <utility>
#include <charconv>
#include <cstdint>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "codegen/sha256.hpp"
#include "pagetune/error.hpp"

namespace pagetune {
namespace {

constexpr int kMostShards = 1'000'000;
constexpr const char* kRemedy = "name the shard with --shard i/N, or take all work with --shard none";

[[noreturn]] void fail(const std::string& sentence) { throw Error(ErrorCode::invalid_argument, sentence); }

// A whole number from 0 to kMostShards; -1 for any other text.
int number(std::string_view text) {
  int value = 0;
  auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (failure != std::errc{} || end != text.data() + text.size() || value < 0 || value > kMostShards) return -1;
  return value;
}

class Environ {
 public:
  explicit Environ(const Variables& variables) : variables_(variables) {}

  bool has(const char* name) const {
    const char* text = variables_(name);
    return text && *text;
  }
  int at(const char* name) const {
    if (!has(name)) fail(fmt::format("{} is not set but others of its kind are; {}", name, kRemedy));
    const int value = number(variables_(name));
    if (value < 0) fail(fmt::format("{} is '{}'; it must be a whole number from 0 to {}. Repair it, or {}", name, variables_(name), kMostShards, kRemedy));
    return value;
  }

 private:
  const Variables& variables_;
};

Shard checked(int index, int count, const std::string& what, const std::string& allowed) {
  if (count < 1 || index < 0 || index >= count) fail(fmt::format("{} is number {} of {}, and numbers go from 0 to N-1: {}, or {}", what, index, count, allowed, kRemedy));
  return {index, count, fmt::format("{} {} of {}", what, index, count)};
}

std::optional<Shard> array_task(const Environ& environ) {
  constexpr const char* kTask = "SLURM_ARRAY_TASK_ID";
  if (!environ.has(kTask)) return std::nullopt;
  const int id = environ.at(kTask);
  if (environ.has("PAGETUNE_SHARDS")) return checked(id, environ.at("PAGETUNE_SHARDS"), "Slurm array task", "set PAGETUNE_SHARDS to N of --array=0-(N-1)");
  const int step = environ.has("SLURM_ARRAY_TASK_STEP") ? environ.at("SLURM_ARRAY_TASK_STEP") : 1;
  const int past = id - environ.at("SLURM_ARRAY_TASK_MIN");
  if (step < 1 || past % step != 0) fail(fmt::format("SLURM_ARRAY_TASK_ID is {}, {} past the first task, but the array's step is {}; {}", id, past, step, kRemedy));
  return checked(past / step, environ.at("SLURM_ARRAY_TASK_COUNT"), "Slurm array task", "submit an array without gaps, such as --array=0-9");
}

std::optional<Shard> completion(const Environ& environ) {
  constexpr const char* kIndex = "JOB_COMPLETION_INDEX";
  if (!environ.has(kIndex)) return std::nullopt;
  if (!environ.has("PAGETUNE_SHARDS"))
    fail(fmt::format("{} is {} but an indexed Job does not tell its pods how many they are: set PAGETUNE_SHARDS to the Job's completions, or {}", kIndex, environ.at(kIndex), kRemedy));
  return checked(environ.at(kIndex), environ.at("PAGETUNE_SHARDS"), "Kubernetes completion", "set PAGETUNE_SHARDS to the Job's completions");
}

std::optional<Shard> rank(const Environ& environ) {
  struct Launcher {
    const char *rank, *size, *what;
  };
  std::vector<Launcher> launchers{{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "Open MPI rank"}, {"PMI_RANK", "PMI_SIZE", "MPI rank"}};
  // Slurm says so in the batch script too, which is one process that does the work of all; only srun makes a step of several.
  if (environ.has("SLURM_STEP_ID")) launchers.push_back({"SLURM_PROCID", "SLURM_NTASKS", "Slurm task"});
  for (const auto& [name, size, what] : launchers)
    if (environ.has(name) && environ.has(size) && environ.at(size) > 1) return checked(environ.at(name), environ.at(size), what, "repair its environment");
  return std::nullopt;
}

Shard from_option(const std::string& text) {
  const size_t slash = text.find('/');
  const int index = number(std::string_view(text).substr(0, slash)), count = slash == std::string::npos ? -1 : number(std::string_view(text).substr(slash + 1));
  if (index < 0 || index >= count)
    fail(fmt::format("--shard is '{}': allowed are i/N, whole numbers with i from 0 to N-1 and N up to {}, such as 0/10 to 9/10, and none", text, kMostShards));
  return {index, count, "--shard"};
}

}  // namespace

std::optional<Shard> find_shard(const std::string& option, const Variables& variables) {
  if (option == "none") return std::nullopt;
  if (!option.empty()) return from_option(option);
  const Environ environ(variables);
  std::optional<Shard> outer = array_task(environ);
  if (!outer) outer = completion(environ);
  std::optional<Shard> inner = rank(environ);
  if (!outer || !inner) return outer ? outer : inner;
  if (int64_t{outer->count} * inner->count > kMostShards) fail(fmt::format("{} times {} shards are more than {}; {}", outer->count, inner->count, kMostShards, kRemedy));
  return Shard{outer->index * inner->count + inner->index, outer->count * inner->count, outer->origin + ", " + inner->origin};
}

int shard_of(const std::string& spec_key, Bucket bucket, int count) {
  const std::string digits = sha256_hex(spec_key + " " + bucket.text()).substr(0, 16);
  uint64_t hash = 0;
  std::from_chars(digits.data(), digits.data() + digits.size(), hash, 16);
  return static_cast<int>(hash % static_cast<uint64_t>(count));
}

void keep_shard(WorkList& list, const Shard& shard) {
  std::erase_if(list.works, [&](const Work& work) { return shard_of(spec_key(work.spec), work.bucket, shard.count) != shard.index; });
}

void deal_works(const std::vector<WorkList*>& alike) {
  using Pair = std::pair<std::string, Bucket>;
  std::map<Pair, std::vector<size_t>> holders;  // whose lists have it
  std::vector<Pair> order;
  for (size_t device = 0; device < alike.size(); ++device)
    for (const Work& work : alike[device]->works) {
      std::vector<size_t>& at = holders[{spec_key(work.spec), work.bucket}];
      if (at.empty()) order.emplace_back(spec_key(work.spec), work.bucket);
      at.push_back(device);
    }
  std::stable_sort(order.begin(), order.end(), [&](const Pair& a, const Pair& b) { return holders[a].size() < holders[b].size(); });
  std::vector<int> dealt(alike.size(), 0);
  std::map<Pair, size_t> owner;
  for (const Pair& pair : order) {
    const std::vector<size_t>& may = holders[pair];
    const size_t to = *std::min_element(may.begin(), may.end(), [&](size_t a, size_t b) { return dealt[a] < dealt[b]; });
    ++dealt[to];
    owner[pair] = to;
  }
  for (size_t device = 0; device < alike.size(); ++device)
    std::erase_if(alike[device]->works, [&](const Work& work) { return owner.at({spec_key(work.spec), work.bucket}) != device; });
}

}  // namespace pagetune
