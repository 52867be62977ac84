#include <SQLiteCpp/SQLiteCpp.h>
#include <fmt/format.h>
#include <sqlite3.h>

#include <memory>

#include "cache_db/export.hpp"
#include "cache_db/merge.hpp"
#include "cache_db/winner_rows.hpp"
#include "cache_db/winner_schema.hpp"
#include "pagetune/error.hpp"

namespace pagetune {

std::string export_db(std::vector<Store::Row> rows) {
  // Sorts, and gives every environment one memory size, which is no part of its identity.
  const MergeRule all_alike{[](const Store::Row&) { return true; }, [](const std::string&) { return true; }};
  try {
    SQLite::Database db(":memory:", SQLite::OPEN_READWRITE | SQLite::OPEN_CREATE);  // its journal mode, "memory", stands in no file: the image is one of mode "delete"
    SQLite::Transaction transaction(db, SQLite::TransactionBehavior::IMMEDIATE);
    create_tables(db, winners_schema());
    {
      RowWriter writer(db);
      for (const Store::Row& row : merged({{"", std::move(rows), {}}}, all_alike).rows) writer.put(row);
    }
    transaction.commit();
    db.exec("VACUUM");
    sqlite3_int64 size = 0;
    const std::unique_ptr<unsigned char, decltype(&sqlite3_free)> image(sqlite3_serialize(db.getHandle(), "main", &size, 0), sqlite3_free);
    if (!image) throw Error(ErrorCode::internal, "SQLite gives no image of the exported database: it ran out of memory or was built without sqlite3_serialize");
    return {reinterpret_cast<const char*>(image.get()), static_cast<size_t>(size)};
  } catch (const SQLite::Exception& failure) {
    throw Error(ErrorCode::internal, fmt::format("the exported database could not be made: {}", failure.what()));
  }
}

}  // namespace pagetune
