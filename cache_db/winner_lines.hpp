// Winners as lines of JSON, for file systems without locks that can be relied on: each process appends to a file of its own, "winners-HOST-PID-RANDOM.jsonl", and reads those of all. docs/cache-format.md
// describes the lines.
#pragma once
#include <sys/types.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <variant>
#include <vector>

#include "cache_db/fork_safe_mutex.hpp"
#include "cache_db/quiet_file.hpp"
#include "cache_db/winner_file.hpp"

namespace pagetune {

// Must the winners of a directory be kept as lines? PAGETUNE_WINNERS=lines or =database says so; otherwise they are on network file systems.
bool wants_lines(const std::string& dir, Problems&);

inline constexpr int kLineFormat = 1;

struct WinnerLine {
  int64_t time = 0;  // microseconds since 1970, and later than every line that its writer had read
  std::variant<Store::Row, Store::Block> content;
};
// Ends with the line's end.
std::string to_text(const WinnerLine&);
// Without its end. Nothing for a line that does not match its sha256, and for any that to_text() does not write.
std::optional<WinnerLine> winner_line(const std::string& text);

// Writes the file anew without those of its lines that are none. Lines that its writer, if it still runs, appends meanwhile may be lost. Returns why not; empty if it was done.
std::string repair_lines(const std::string& path);

// The files of lines in a directory, sorted.
std::vector<std::string> line_files(const std::string& dir);
bool is_line_file(const std::string& path);
bool is_line_draft(const std::string& path);  // one that is being written, or whose writer was killed

// What the lines of some files say together: of each bucket's winners and each config's blocks the newest.
class NewestLines {
 public:
  using Key = std::tuple<std::string, std::string, Bucket>;               // environment, spec
  using BlockKey = std::tuple<std::string, std::string, std::string>;     // environment, spec, config

  struct File {
    ino_t inode = 0;
    int64_t bytes = 0;  // of whole lines that were read
    int lines = 0;
    std::vector<int> wrong;  // the numbers of those that are none, from 1
    std::string refusal;     // why it is not read; empty if it is
  };

  // Takes in the whole lines that a file has gained since it was last read.
  const File& read(const std::string& path);
  void take(const std::string& path, WinnerLine);
  // Older than every line, and in the place of those that came this way before.
  void take_oldest(const std::vector<Store::Row>&, const std::vector<Store::Block>&);

  std::vector<Store::Row> rows(const RowFilter& = {}) const;
  std::vector<Store::Block> blocks(const RowFilter& = {}) const;
  int64_t count() const { return static_cast<int64_t>(rows_.size()); }
  int64_t newest() const { return newest_; }  // time of the newest line; 0 if there is none

 private:
  template <class Value>
  struct Timed {
    std::pair<int64_t, std::string> time;  // and the file, which decides between equal times
    Value value;
  };

  std::map<std::string, File> files_;
  std::map<Key, Timed<Store::Row>> rows_;
  std::map<BlockKey, Timed<Store::Block>> blocks_;
  int64_t newest_ = 0;
};

class WinnerLines final : public WinnerFile {
 public:
  WinnerLines(std::string dir, Problems& problems);
  ~WinnerLines() override;
  WinnerLines(const WinnerLines&) = delete;
  WinnerLines& operator=(const WinnerLines&) = delete;

  const std::string& path() const override { return dir_; }
  bool usable() override;
  std::vector<std::optional<Store::Row>> rows(const RowFilter&) override;
  std::vector<std::optional<Store::Block>> blocks(const RowFilter&) override;
  Choices choices(const Environment& own, const std::string& generator, const std::string& spec_key) override;
  int64_t count() override;
  bool put(const Content&) override;
  bool change(const std::function<Content(const Content& held)>&) override;

 private:
  void refresh();
  bool append(const Content&);
  std::string write(const std::string& text, bool several);  // why not; empty if it was
  std::string open_own(const std::string& draft);            // likewise
  void close_own();

  const std::string dir_;
  Problems& problems_;
  ForkSafeMutex mutex_{LockLevel::database};
  NewestLines newest_;
  std::optional<FileStamp> database_;  // of the winners.db that was read
  int file_ = -1;                      // this process's own
  std::string own_path_;
  ino_t own_inode_ = 0;
  pid_t owner_ = 0;
};

}  // namespace pagetune
