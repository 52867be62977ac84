#include "cache_db/binary_archive.hpp"

#include <archive.h>
#include <archive_entry.h>
#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <memory>
#include <string_view>

#include "cache_db/archive_manifest.hpp"
#include "cache_db/binary_table.hpp"
#include "cache_db/directory.hpp"
#include "pagetune/error.hpp"

namespace pagetune {
namespace {

constexpr const char* kManifestName = "manifest.json";
constexpr size_t kBlock = 512;                         // of a tar file: headers and contents begin at multiples of it, and two empty ones end it
constexpr size_t kTypeAt = 156, kMarkAt = 257;         // in a header
constexpr char kRegular = '0';
constexpr std::string_view kMark{"ustar\0" "00", 8};  // with the version
constexpr size_t kLargestArchive = size_t{640} << 20;  // bytes

size_t whole_blocks(size_t bytes) { return (bytes + kBlock - 1) / kBlock * kBlock; }

class Writer {
 public:
  Writer() : archive_(archive_write_new(), archive_write_free), entry_(archive_entry_new(), archive_entry_free) {
    require(archive_write_set_format_ustar(archive_.get()));
    require(archive_write_set_bytes_per_block(archive_.get(), 0));
    require(archive_write_open(archive_.get(), &bytes_, nullptr, append, nullptr));
  }

  void add(const std::string& name, const std::string& data) {
    archive_entry_clear(entry_.get());
    archive_entry_set_pathname(entry_.get(), name.c_str());
    archive_entry_set_filetype(entry_.get(), AE_IFREG);
    archive_entry_set_perm(entry_.get(), 0644);
    archive_entry_set_mtime(entry_.get(), 0, 0);
    archive_entry_set_size(entry_.get(), static_cast<la_int64_t>(data.size()));
    require(archive_write_header(archive_.get(), entry_.get()));
    if (archive_write_data(archive_.get(), data.data(), data.size()) != static_cast<la_ssize_t>(data.size())) require(ARCHIVE_FATAL);
  }

  std::string finish() {
    require(archive_write_close(archive_.get()));
    return std::move(bytes_);
  }

 private:
  static la_ssize_t append(archive*, void* bytes, const void* data, size_t size) {
    static_cast<std::string*>(bytes)->append(static_cast<const char*>(data), size);
    return static_cast<la_ssize_t>(size);
  }
  void require(int result) {
    if (result != ARCHIVE_OK) throw Error(ErrorCode::internal, fmt::format("the archive could not be made: {}", archive_error_string(archive_.get())));
  }

  std::string bytes_;
  std::unique_ptr<archive, int (*)(archive*)> archive_;
  std::unique_ptr<archive_entry, void (*)(archive_entry*)> entry_;
};

// The entries of an archive in memory, one after another.
class Reader {
 public:
  struct Entry {
    std::string name, data;
  };

  Reader(const std::string& file, const std::string& bytes) : file_(file), bytes_(bytes), archive_(archive_read_new(), archive_read_free) {
    if (archive_read_support_format_tar(archive_.get()) != ARCHIVE_OK || archive_read_open_memory(archive_.get(), bytes.data(), bytes.size()) != ARCHIVE_OK) fail(said());
  }

  // False behind the last one.
  bool next(Entry& entry) {
    ++number_;
    require_plain_header();
    archive_entry* header = nullptr;
    const int result = archive_read_next_header(archive_.get(), &header);
    if (result == ARCHIVE_EOF) {
      require_end();
      return false;
    }
    if (result != ARCHIVE_OK) fail_entry(said());
    const size_t begin = end_ + kBlock;
    const auto size = static_cast<uint64_t>(archive_entry_size(header));  // a negative one is too large
    if (size > bytes_.size() - begin) fail_entry(fmt::format("it is cut off: its header says {} bytes, and {} follow", size, bytes_.size() - begin));
    const char* name = archive_entry_pathname(header);
    entry.name = name == nullptr ? "" : name;
    entry.data.resize(size);
    if (archive_read_data(archive_.get(), entry.data.data(), size) != static_cast<la_ssize_t>(size)) fail_entry(said());
    end_ = begin + whole_blocks(size);
    return true;
  }

  [[noreturn]] void fail(const std::string& sentence) const { throw Error(ErrorCode::invalid_argument, fmt::format("{}: {}; nothing of it is taken in", file_, sentence)); }
  [[noreturn]] void fail_entry(const std::string& sentence) const { fail(fmt::format("entry {}: {}", number_, sentence)); }

 private:
  std::string said() const {
    const char* text = archive_error_string(archive_.get());
    return fmt::format("it is no tar file, or damaged ({})", text == nullptr ? "no reason is given" : text);
  }

  // libarchive takes every kind of tar, with headers that say something of the next one: another name, a larger size, holes. It gets to see what is written here and nothing else.
  void require_plain_header() const {
    const bool is_header = end_ + kBlock <= bytes_.size() && bytes_.find_first_not_of('\0', end_) < end_ + kBlock;
    if (!is_header) return;
    if (bytes_.compare(end_ + kMarkAt, kMark.size(), kMark) != 0) fail_entry("it does not begin with a header of POSIX ustar: other formats of tar, and compressed ones, are not allowed");
    if (bytes_[end_ + kTypeAt] != kRegular) fail_entry("it is no regular file: links, directories, devices and headers of extensions are not allowed");
  }

  void require_end() const {
    if (end_ + 2 * kBlock > bytes_.size()) fail(fmt::format("it is cut off: it ends after {} entries without the two empty blocks that end a tar file", number_ - 1));
    if (bytes_.find_first_not_of('\0', end_) != std::string::npos) fail("there is something behind its end");
  }

  const std::string file_;
  const std::string& bytes_;
  std::unique_ptr<archive, int (*)(archive*)> archive_;
  size_t end_ = 0;  // of the entries so far
  int number_ = 0;  // of the entry that is read, from 1
};

void sort_by_key(std::vector<Binary>& binaries) {
  std::sort(binaries.begin(), binaries.end(), [](const Binary& a, const Binary& b) { return a.key < b.key; });
}

}  // namespace

std::string binary_archive(std::vector<Binary> binaries, const std::set<std::string>& compilers) {
  sort_by_key(binaries);
  for (const Binary& binary : binaries) check_binary(binary);
  const std::string manifest = manifest_text(binaries, compilers);
  parse_manifest("the archive to be written", manifest);  // who reads it must not be the first to learn what it may not have
  Writer writer;
  writer.add(kManifestName, manifest);
  for (const Binary& binary : binaries) writer.add(binary.key, binary.data);
  return writer.finish();
}

std::vector<Binary> parse_binary_archive(const std::string& file, const std::string& bytes) {
  Reader reader(file, bytes);
  Reader::Entry entry;
  if (!reader.next(entry) || entry.name != kManifestName) reader.fail(fmt::format("its first entry is not {}: it was not written by pagetune export --format tar", kManifestName));
  Manifest expected = parse_manifest(file, entry.data);
  std::vector<Binary> binaries;
  while (reader.next(entry)) {
    const auto found = expected.find(entry.name);
    if (found == expected.end()) reader.fail_entry(fmt::format("its name is not one of those that {} lists and that were not there before: keys of 64 hexadecimal digits, each once", kManifestName));
    auto& [binary, size] = found->second;
    if (entry.data.size() != size) reader.fail_entry(fmt::format("binary {} has {} bytes where {} says {}", binary.key, entry.data.size(), kManifestName, size));
    binary.data = std::move(entry.data);
    try {
      check_binary(binary);
    } catch (const Error& wrong) {
      reader.fail_entry(wrong.what());
    }
    binaries.push_back(std::move(binary));
    expected.erase(found);
  }
  if (!expected.empty()) reader.fail(fmt::format("{} of the binaries that {} lists are missing, among them {}", expected.size(), kManifestName, expected.begin()->first));
  sort_by_key(binaries);
  return binaries;
}

std::vector<Binary> read_binary_archive(const std::string& path) { return parse_binary_archive(path, read_trusted_file(path, kLargestArchive)); }

bool is_binary_archive(const std::string& path) {
  std::string header(kBlock, '\0');
  std::ifstream(path, std::ios::binary).read(header.data(), kBlock);
  return path.ends_with(".tar") || header.compare(kMarkAt, kMark.size(), kMark) == 0;
}

}  // namespace pagetune
