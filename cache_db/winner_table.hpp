// The winners and blocked configs of a directory. What its file does not take is kept in memory beside it.
#pragma once
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "cache_db/fork_safe_mutex.hpp"
#include "cache_db/merge.hpp"
#include "cache_db/problems.hpp"
#include "cache_db/store.hpp"
#include "cache_db/winner_file.hpp"

namespace pagetune {

class WinnerTable {
 public:
  WinnerTable(const std::string& dir, Problems& problems);

  bool usable() { return file_->usable(); }
  void put(const Store::Row&);
  std::vector<Winner> find(const std::string& env_key, const std::string& spec_key);  // sorted by bucket
  std::vector<Store::Row> all(const std::string& spec_key = "");                      // of a spec, or of all; sorted by environment, spec, bucket
  LayeredWinners candidates(const Environment& own, const std::string& generator, const std::string& spec_key = "");  // what dispatch needs of those that may answer on a device
  void block(const std::string& env_key, const std::string& spec_key, const KernelConfig&, const std::string& reason);
  std::vector<std::pair<KernelConfig, std::string>> blocked(const std::string& env_key, const std::string& spec_key);
  std::optional<Merged> merge(const std::vector<MergeSource>&, const MergeRule&);  // nothing if the file did not take it
  int64_t count();
  int64_t unstored();  // of them, those in memory only

 private:
  using Key = std::tuple<std::string, std::string, Bucket>;
  using BlockKey = std::tuple<std::string, std::string, std::string>;  // environment, spec, config

  std::map<Key, Store::Row> stored_rows(const std::string& spec_key);

  Problems& problems_;
  const std::unique_ptr<WinnerFile> file_;
  ForkSafeMutex mutex_{LockLevel::overlay};
  std::map<Key, Store::Row> rows_;
  std::map<BlockKey, Store::Block> blocks_;
};

}  // namespace pagetune
