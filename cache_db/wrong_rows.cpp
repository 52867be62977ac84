#include "cache_db/wrong_rows.hpp"

#include <fmt/format.h>

#include "cache_db/binary_table.hpp"
#include "cache_db/source.hpp"
#include "cache_db/table.hpp"
#include "cache_db/untuned_table.hpp"
#include "cache_db/winner_rows.hpp"
#include "cache_db/winner_schema.hpp"
#include "codegen/sha256.hpp"
#include "codegen/space.hpp"
#include "pagetune/error.hpp"

namespace pagetune {
namespace {

// Text of any cell, also of one that damage made something else.
std::string text_of(SQLite::Statement& row, int column) { return row.getColumn(column).getString(); }

// Of a cell that may hold anything, what a terminal and JSON can show.
std::string shown(const std::string& text) {
  std::string printable = text.substr(0, 12);
  for (char& c : printable)
    if (c < 0x20 || c > 0x7e) c = '?';
  return printable;
}

std::string place_name(const std::string& env_key, const std::string& spec) { return fmt::format("of spec {} on environment {}", shown(spec), shown(env_key)); }

std::string bucket_name(SQLite::Statement& row) { return fmt::format("{}x{} {}", shown(text_of(row, 2)), shown(text_of(row, 3)), place_name(text_of(row, 0), text_of(row, 1))); }

// The key of what a text describes; empty if it describes nothing.
template <class KeyOf>
std::string key_of(const std::string& text, const KeyOf& key) {
  try {
    return key(text);
  } catch (const Error&) {
    return "";
  }
}
std::string environment_key(const std::string& text) {
  return key_of(text, [](const std::string& json) { return Environment::from_json(json).key(); });
}
std::string spec_key_of(const std::string& text) {
  return key_of(text, [](const std::string& json) { return spec_key(spec_from_json(json)); });
}

bool measured_in_this_space(const Store::Row& row) {
  const ConfigSpace& space = ConfigSpace::builtin();
  try {
    return row.winner.space_hash == space.hash(space.family(row.spec.kind, target_of(row.environment).backend));
  } catch (const Error&) {
    return false;
  }
}

// Columns as in WinnerColumn.
std::string winner_fault(SQLite::Database& db, SQLite::Statement& row) {
  const std::string env_key = text_of(row, kEnvKey), key = text_of(row, kSpecKey);
  if (env_key.empty() || environment_key(text_of(row, kEnvJson)) != env_key) return "its environment is missing or does not match its key";
  if (key.empty() || spec_key_of(text_of(row, kSpecJson)) != key) return "its spec is missing or does not match its key";
  const std::optional<Winner> winner = read_winner(row);
  if (!winner) return "its values do not match its digest";
  if (!is_sealed(db, row.getColumn(kRowId).getInt64(), *winner)) return "its values do not match its seal";
  if (std::string reason = form_refusal(*winner); !reason.empty()) return reason;
  const Store::Row whole{*winner, Environment::from_json(text_of(row, kEnvJson)), spec_from_json(text_of(row, kSpecJson))};
  return measured_in_this_space(whole) ? row_refusal(whole) : "";
}

template <class Fault>
void check_texts(SQLite::Database& db, const char* table, const char* key, const Fault& key_of_text, std::vector<WrongRow>& wrong) {
  SQLite::Statement select(db, fmt::format("SELECT {}, json, rowid FROM {} ORDER BY rowid", key, table));
  while (select.executeStep())
    if (key_of_text(text_of(select, 1)) != text_of(select, 0))
      wrong.push_back({table, select.getColumn(2).getInt64(), shown(text_of(select, 0)), "its text does not match its key"});
}

void check_blocks(SQLite::Database& db, std::vector<WrongRow>& wrong) {
  SQLite::Statement select(db, fmt::format("SELECT {}, spec_key, config, rowid FROM blocklist ORDER BY rowid", key_columns(db).blocked_env));
  while (select.executeStep()) {
    std::string fault;
    if (!is_key(text_of(select, 0)) || !is_key(text_of(select, 1))) fault = "its keys are not of 64 hexadecimal digits";
    try {
      KernelConfig::from_json(text_of(select, 2));
    } catch (const Error&) {
      fault = "what it blocks is not a config";
    }
    if (!fault.empty()) wrong.push_back({"blocklist", select.getColumn(3).getInt64(), place_name(text_of(select, 0), text_of(select, 1)), fault});
  }
}

}  // namespace

std::vector<WrongRow> wrong_winner_rows(SQLite::Database& db) {
  std::vector<WrongRow> wrong;
  SQLite::Statement select(db, winners_query(db) + " ORDER BY w.rowid");
  while (select.executeStep())
    if (std::string fault = winner_fault(db, select); !fault.empty()) wrong.push_back({"winner", select.getColumn(kRowId).getInt64(), bucket_name(select), fault});
  check_texts(db, "env", key_columns(db).env, environment_key, wrong);
  check_texts(db, "spec", key_columns(db).spec, spec_key_of, wrong);
  check_blocks(db, wrong);
  return wrong;
}

std::vector<WrongRow> wrong_binary_rows(SQLite::Database& db, bool bytes) {
  std::vector<WrongRow> wrong;
  SQLite::Statement select(db, fmt::format("SELECT rowid, binary_key, arch, kind, size, sha256, typeof(data), length(data){} FROM blob ORDER BY rowid", bytes ? ", data" : ""));
  while (select.executeStep()) {
    const std::string key = text_of(select, 1), kind = text_of(select, 3);
    std::string fault;
    if (!is_key(key)) fault = "its key is not of 64 hexadecimal digits";
    else if (text_of(select, 2).empty()) fault = "it names no architecture";
    else if (!is_binary_kind(kind)) fault = fmt::format("its kind is '{}'; there are cubin and object", shown(kind));
    else if (text_of(select, 6) != "blob" || select.getColumn(4).getInt64() != select.getColumn(7).getInt64())
      fault = fmt::format("it has {} bytes where its size says {}", shown(text_of(select, 7)), shown(text_of(select, 4)));
    else if (bytes && sha256_hex(text_of(select, 8)) != text_of(select, 5)) fault = "its bytes do not match their sha256";
    if (!fault.empty()) wrong.push_back({"blob", select.getColumn(0).getInt64(), fmt::format("{} for {}", shown(key), shown(text_of(select, 2))), fault});
  }
  return wrong;
}

std::vector<WrongRow> wrong_untuned_rows(SQLite::Database& db) {
  std::vector<WrongRow> wrong;
  SQLite::Statement select(db, fmt::format("SELECT {}, rowid FROM untuned ORDER BY rowid", kUntunedColumns));
  while (select.executeStep())
    if (!read_untuned(select)) wrong.push_back({"untuned", select.getColumn(8).getInt64(), bucket_name(select), "its keys do not match its texts"});
  return wrong;
}

void remove_rows(SQLite::Database& db, const std::vector<WrongRow>& rows) {
  for (const WrongRow& row : rows) {
    SQLite::Statement remove(db, fmt::format("DELETE FROM {} WHERE rowid=?", row.table));
    remove.bind(1, row.rowid);
    remove.exec();
  }
}

}  // namespace pagetune
