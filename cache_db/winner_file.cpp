#include "cache_db/winner_file.hpp"

#include <fmt/format.h>

#include "cache_db/database.hpp"
#include "cache_db/directory.hpp"
#include "cache_db/winner_lines.hpp"
#include "cache_db/winner_schema.hpp"

namespace pagetune {
namespace {

class WinnerDatabase final : public WinnerFile {
 public:
  WinnerDatabase(const std::string& dir, Problems& problems) : db_(dir, "winners.db", winners_schema(), problems) {}

  const std::string& path() const override { return db_.path(); }
  bool usable() override { return db_.usable(); }

  std::vector<std::optional<Store::Row>> rows(const RowFilter& filter) override {
    return db_.read([&](SQLite::Database& db) { return read_rows(db, filter); }).value_or(std::vector<std::optional<Store::Row>>{});
  }
  std::vector<std::optional<Store::Block>> blocks(const RowFilter& filter) override {
    return db_.read([&](SQLite::Database& db) { return read_blocks(db, filter); }).value_or(std::vector<std::optional<Store::Block>>{});
  }
  Choices choices(const Environment& own, const std::string& generator, const std::string& spec_key) override {
    return db_.read([&](SQLite::Database& db) { return read_choices(db, own, generator, spec_key); }).value_or(Choices{});
  }
  int64_t count() override {
    return db_.read([](SQLite::Database& db) { return db.execAndGet("SELECT count(*) FROM winner").getInt64(); }).value_or(0);
  }

  bool put(const Content& content) override {
    return db_.write([&](SQLite::Database& db) { write(db, content); });
  }
  bool change(const std::function<Content(const Content& held)>& change) override {
    return db_.write([&](SQLite::Database& db) {
      Content held;
      for (auto& row : read_rows(db))
        if (row) held.rows.push_back(std::move(*row));
      for (auto& block : read_blocks(db))
        if (block) held.blocks.push_back(std::move(*block));
      write(db, change(held));
    });
  }

 private:
  static void write(SQLite::Database& db, const Content& content) {
    RowWriter writer(db);
    for (const Store::Row& row : content.rows) writer.put(row);
    for (const Store::Block& block : content.blocks) write_block(db, block);
  }

  Database db_;
};

}  // namespace

std::unique_ptr<WinnerFile> open_winner_file(const std::string& dir, Problems& problems) {
  if (dir != kMemory) {
    if (wants_lines(dir, problems)) return std::make_unique<WinnerLines>(dir, problems);
    if (!line_files(dir).empty())
      problems.say(fmt::format("{0} holds winners-*.jsonl of processes to which it was a network file system; they are not read here. `pagetune merge {0} --into {0}` takes them in, and then they can be removed", dir));
  }
  return std::make_unique<WinnerDatabase>(dir, problems);
}

}  // namespace pagetune
