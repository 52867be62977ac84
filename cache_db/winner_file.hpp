// Where the winners of a directory are kept: one database, or lines of each process where the file system's locks cannot be relied on.
#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cache_db/problems.hpp"
#include "cache_db/store.hpp"
#include "cache_db/winner_choices.hpp"
#include "cache_db/winner_rows.hpp"

namespace pagetune {

class WinnerFile {
 public:
  struct Content {
    std::vector<Store::Row> rows;
    std::vector<Store::Block> blocks;
  };

  virtual ~WinnerFile() = default;
  virtual const std::string& path() const = 0;  // for messages
  virtual bool usable() = 0;

  // What cannot be read counts as not there. Nothing in the place of a row or block that is damaged.
  virtual std::vector<std::optional<Store::Row>> rows(const RowFilter&) = 0;
  virtual std::vector<std::optional<Store::Block>> blocks(const RowFilter&) = 0;
  virtual Choices choices(const Environment& own, const std::string& generator, const std::string& spec_key) = 0;
  virtual int64_t count() = 0;  // of winners

  // Each in the place of what was there for it. False if nothing was stored.
  virtual bool put(const Content&) = 0;
  // The same of what `change` makes of all that is held, with no other process's write in between where there are locks.
  virtual bool change(const std::function<Content(const Content& held)>&) = 0;
};

// Lines where the directory lies on a network file system or PAGETUNE_WINNERS=lines asks for them, else a database.
std::unique_ptr<WinnerFile> open_winner_file(const std::string& dir, Problems&);

}  // namespace pagetune
