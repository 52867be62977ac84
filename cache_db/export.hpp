// Winners as files for people and other programs. Pure: the same rows give the same bytes, in whatever order they come.
#pragma once
#include <string>
#include <vector>

#include "cache_db/store.hpp"

namespace pagetune {

struct ExportedFile {
  std::string name;  // letters, digits and "=,._-" only, below 255 bytes
  std::string text;
};

// One JSON table per (environment, spec), named like
// "head=128,gqa=4,kv_heads=8,page=16,dtype=bf16,layout=nhd,device_name=NVIDIA_H200.json". A spec or an environment whose name another
// one shares gets a piece of its key in addition. parse_table() reads them back. Sorted by name.
std::vector<ExportedFile> export_json(std::vector<Store::Row> rows);

// The same tables as results in the T4 format 1.0.0 that Kernel Tuner writes, for tools that compare tuners; "….t4.json". Two results for each bucket at most: the winner and the runner-up.
std::vector<ExportedFile> export_t4(std::vector<Store::Row> rows);

// RFC 4180 with one header line and one line per winner, sorted by environment, spec and bucket.
std::string export_csv(std::vector<Store::Row> rows);

// A winners.db of these rows and nothing else, to be shipped read only; read_source() and Store::merge() take it. Equal rows give equal bytes with one version of SQLite.
std::string export_db(std::vector<Store::Row> rows);

}  // namespace pagetune
