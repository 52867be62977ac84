#include <fmt/format.h>

#include "cache_db/directory.hpp"
#include "cache_db/repair.hpp"
#include "tuner/cli/exit_code.hpp"
#include "tuner/cli/store_summary.hpp"
#include "tuner/cli/verbs.hpp"

namespace pagetune::cli {
namespace {

using Json = nlohmann::ordered_json;

struct VerifyArguments {
  CareOptions care;
  bool repair = false;
};

bool is_right(const FileReport& file) { return file.state == FileState::missing || (file.state == FileState::sound && file.wrong.empty()); }

// What is wrong, a line each.
std::vector<std::string> faults_of(const FileReport& file) {
  std::vector<std::string> faults;
  if (file.state != FileState::missing && file.state != FileState::sound) faults.push_back(fmt::format("{}: {}", name_of(file.state), file.why));
  for (const WrongRow& row : file.wrong) faults.push_back(fmt::format("{} {}: {}", row.table, row.row, row.reason));
  return faults;
}

Json report_json(const FileReport& file, const std::vector<FileRepair>& repairs) {
  Json made = file_json(file);
  made["wrong"] = Json::array();
  for (const WrongRow& row : file.wrong) made["wrong"].push_back({{"table", row.table}, {"row", row.row}, {"reason", row.reason}});
  for (const FileRepair& repair : repairs)
    if (repair.path == file.path) made["repair"] = {{"done", repair.done}, {"renewed", repair.renewed}, {"removed_rows", repair.removed.size()}};
  return made;
}

std::string rows_text(const StoreReport& report, const FileReport& file) {
  if (&file == &report.winners_db) return fmt::format("{}, {}", counted(std::ssize(report.rows), "winner"), counted(std::ssize(report.blocks), "blocked config"));
  if (&file == &report.kernels_db) return counted(std::ssize(report.binaries), "binary", "binaries");
  if (&file == &report.untuned_db) return counted(std::ssize(report.untuned), "counted bucket");
  return "lines of one process";
}

void print(const StoreReport& report, const std::vector<FileRepair>& repairs) {
  for (const FileReport* file : report.files()) {
    fmt::print("{}: {}\n", file->path, file->state == FileState::missing ? "not there" : is_right(*file) ? "all right, " + rows_text(report, *file) : counted(std::ssize(faults_of(*file)), "fault"));
    for (const std::string& fault : faults_of(*file)) fmt::print("  {}\n", fault);
    if (is_right(*file) && !file->why.empty()) fmt::print("  {}\n", file->why);
    for (const FileRepair& repair : repairs)
      if (repair.path == file->path)
        fmt::print("  {}\n", !repair.done                                ? "not repaired"
                             : repair.renewed                            ? "repaired: the file was set aside and a new one holds what could be read"
                                                                         : fmt::format("repaired: {} removed", counted(std::ssize(repair.removed), "row")));
  }
}

int code_of(const StoreReport& report, const std::vector<FileRepair>& repairs) {
  int wrong = 0, repaired = 0;
  for (const FileReport* file : report.files()) wrong += is_right(*file) ? 0 : 1;
  for (const FileRepair& repair : repairs) repaired += repair.done ? 1 : 0;
  if (repaired == wrong) return kDone;
  return repaired > 0 ? kPartly : kFailed;
}

int run_verify(const VerifyArguments& arguments) {
  const std::string dir = store_directory(arguments.care.store);
  const StoreReport report = dir == kMemory ? StoreReport{} : inspect_store(dir, true);
  Problems problems;
  const std::vector<FileRepair> repairs = arguments.repair && dir != kMemory ? repair_store(dir, report, problems) : std::vector<FileRepair>{};
  const int code = code_of(report, repairs);
  for (const std::string& problem : problems.all()) fmt::print(stderr, "store: {}\n", problem);
  if (arguments.care.json) {
    Json files = Json::array();
    if (dir != kMemory)
      for (const FileReport* file : report.files()) files.push_back(report_json(*file, repairs));
    fmt::print("{}\n", document_text({{"store", dir}, {"right", code == kDone}, {"files", files}, {"problems", problems.all()}}));
    return code;
  }
  if (dir == kMemory) {
    fmt::print("nothing is kept: there is no store to check\n");
    return code;
  }
  print(report, repairs);
  if (code != kDone && !arguments.repair) fmt::print("pagetune verify --repair removes what is wrong\n");
  return code;
}

}  // namespace

void add_verify(CLI::App& app, Run& run) {
  auto arguments = std::make_shared<VerifyArguments>();
  CLI::App* verb = app.add_subcommand("verify", "Check every row and every binary of the store. Exit codes: 0 all right, or repaired; 1 something is wrong; 3 repaired partly");
  verb->add_flag("--repair", arguments->repair, "Remove what is wrong: damaged binaries, rows that do not match their digest, damaged files");
  add_care_options(*verb, arguments->care);
  verb->callback([=, &run] { run = [=] { return run_verify(*arguments); }; });
}

}  // namespace pagetune::cli
