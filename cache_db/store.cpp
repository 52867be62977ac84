#include "cache_db/store.hpp"

#include <fmt/format.h>

#include <atomic>
#include <filesystem>
#include <map>
#include <mutex>

#include "cache_db/binary_table.hpp"
#include "cache_db/directory.hpp"
#include "cache_db/key_lock.hpp"
#include "cache_db/layers.hpp"
#include "cache_db/memory_binaries.hpp"
#include "cache_db/shipped_table.hpp"
#include "cache_db/single_flight.hpp"
#include "cache_db/untuned_table.hpp"
#include "cache_db/winner_table.hpp"
#include "codegen/generate.hpp"
#include "pagetune/error.hpp"

namespace pagetune {
namespace {

// A duplicate compile is cheap, a hang is not; no compile of one kernel takes as long as this.
constexpr std::chrono::seconds kWaitLimit{30};

class DiskStore final : public Store {
 public:
  explicit DiskStore(const std::string& wanted)
      : dir_(open_directory(wanted, problems_)), winners_(dir_, problems_), untuned_(dir_, problems_), binaries_(dir_, problems_), flights_(kWaitLimit) {
    bool winners = winners_.usable(), binaries = binaries_.usable();  // opens both, so that problems are known at once
    shown_dir_ = winners || binaries ? dir_ : kMemory;
  }

  const std::string& dir() const override { return shown_dir_; }
  std::vector<std::string> problems() const override { return problems_.all(); }

  void put_winner(const Winner& winner, const Environment& environment, const AttentionSpec& spec) override {
    winners_.put({winner, environment, spec});
  }
  std::vector<Winner> winners(const std::string& env_key, const std::string& spec_key) const override { return winners_.find(env_key, spec_key); }
  std::vector<LayeredWinner> layered_winners(const Environment& own, const std::string& spec_key) const override {
    LayeredWinners all = layered_winners_of(own, spec_key);
    return all.empty() ? std::vector<LayeredWinner>{} : std::move(all.begin()->second);
  }
  LayeredWinners layered_winners(const Environment& own) const override { return layered_winners_of(own, ""); }
  std::vector<Row> all_winners() const override { return winners_.all(); }
  std::vector<Row> rows_of(const std::string& spec_key) const override {
    std::vector<Row> rows = winners_.all(spec_key);
    for (Row& row : shipped_.rows_of(spec_key)) rows.push_back(std::move(row));
    return rows;
  }
  void block(const std::string& env_key, const std::string& spec_key, const KernelConfig& config, const std::string& reason) override {
    winners_.block(env_key, spec_key, config, reason);
  }
  std::vector<std::pair<KernelConfig, std::string>> blocked(const std::string& env_key, const std::string& spec_key) const override {
    return winners_.blocked(env_key, spec_key);
  }
  void add_untuned(const std::vector<Untuned>& calls) override { untuned_.add(calls); }
  std::vector<Untuned> untuned() const override { return untuned_.all(); }
  std::optional<Merged> merge(const std::vector<MergeSource>& sources, const MergeRule& rule) override { return winners_.merge(sources, rule); }

  std::optional<Binary> find_binary(const std::string& key) override {
    std::optional<Binary> found = memory_.find(key);
    if (!found) found = load(key);
    if (found) ++hits_;
    return found;
  }

  void put_binary(const Binary& binary) override {
    binaries_.put(binary);
    memory_.put(binary);
  }

  std::vector<Binary> all_binaries() override { return binaries_.all(); }
  std::optional<int> add_binaries(const std::vector<Binary>& binaries) override { return binaries_.add(binaries); }

  Binary get_or_compile(const std::string& key, const std::function<Binary()>& compile) override {
    bool compiled = false;
    Binary binary = flights_.run(key, [&] { return memory_.find(key); }, [&] { return lead(key, compile, compiled); });
    if (!compiled) ++hits_;
    return binary;
  }

  Counters counters() const override { return {hits_, compiles_, binaries_.corrupt()}; }

  Usage usage() const override {
    std::optional<BinaryTable::Usage> stored = binaries_.usage();
    if (!stored) stored = BinaryTable::Usage{memory_.count(), memory_.bytes()};
    return {winners_.count(), winners_.unstored(), stored->count, stored->bytes};
  }

 private:
  LayeredWinners layered_winners_of(const Environment& own, const std::string& spec_key) const {
    const std::string& generator = generator_hash();
    LayeredWinners all = winners_.candidates(own, generator, spec_key);
    for (auto& [spec, winners] : candidates(own, generator, shipped_.rows_of(spec_key), true))
      for (LayeredWinner& one : winners) all[spec].push_back(std::move(one));
    for (auto& [spec, winners] : all) winners = layered(winners);
    return all;
  }

  std::optional<Binary> load(const std::string& key) {
    std::optional<Binary> found = binaries_.find(key);
    if (found) memory_.put(*found);
    return found;
  }

  // The leading thread's part of a flight. No transaction is open while `compile` runs.
  Binary lead(const std::string& key, const std::function<Binary()>& compile, bool& compiled) {
    if (auto found = load(key)) return *found;
    KeyLock lock(dir_, key, kWaitLimit);
    if (auto found = load(key)) return *found;  // another process published it while this one waited
    compiled = true;
    ++compiles_;
    Binary binary = compile();
    if (binary.key != key)
      throw Error(ErrorCode::internal, fmt::format("the compiler returned binary {} where {} was wanted", binary.key, key));
    binary.facts = {};  // the same answer as from the store
    put_binary(binary);
    return binary;
  }

  Problems problems_;
  const std::string dir_;
  std::string shown_dir_;
  mutable WinnerTable winners_;
  const ShippedTable shipped_{problems_};
  mutable UntunedTable untuned_;  // opened by the first call that is counted
  mutable BinaryTable binaries_;
  MemoryBinaries memory_;
  SingleFlight flights_;
  std::atomic<uint64_t> hits_{0}, compiles_{0};
};

struct Registry {
  ForkSafeMutex mutex{LockLevel::registry};
  std::map<std::string, std::weak_ptr<Store>> open;
};

}  // namespace

std::shared_ptr<Store> Store::open(const std::string& dir) {
  static auto* registry = new Registry;
  const std::string wanted = dir.empty() ? default_dir() : dir;
  if (wanted == kMemory) return std::make_shared<DiskStore>(wanted);
  std::error_code error;
  std::filesystem::path path = std::filesystem::weakly_canonical(wanted, error);
  const std::string name = error ? wanted : path.string();
  std::lock_guard lock(registry->mutex);
  std::weak_ptr<Store>& known = registry->open[name];
  std::shared_ptr<Store> store = known.lock();
  if (!store) known = store = std::make_shared<DiskStore>(wanted);
  return store;
}

}  // namespace pagetune
