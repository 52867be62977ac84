// Archives of compiled kernels: what is written comes back, and everything else is refused with a sentence.
#include <SQLiteCpp/SQLiteCpp.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <functional>

#include <nlohmann/json.hpp>

#include "cache_db/archive_manifest.hpp"
#include "cache_db/binary_archive.hpp"
#include "cache_db/binary_table.hpp"
#include "cache_db/database.hpp"
#include "cache_db/directory.hpp"
#include "pagetune/error.hpp"
#include "store_expect.hpp"

namespace pagetune {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

// A header of 512 bytes as POSIX describes it, with any fields, and data behind it.
struct TarEntry {
  std::string name, data;
  char type = '0';
  std::string link, magic = std::string("ustar\0" "00", 8), prefix, size;  // size: the field's 12 bytes, if not that of data

  std::string bytes() const {
    std::string header(512, '\0');
    const auto set = [&](size_t at, const std::string& text) { header.replace(at, text.size(), text); };
    set(0, name);
    set(100, "000644 ");
    set(108, "000000 ");
    set(116, "000000 ");
    set(124, size.empty() ? fmt::format("{:011o} ", data.size()) : size);
    set(136, "00000000000 ");
    header[156] = type;
    set(157, link);
    set(257, magic);
    set(345, prefix);
    set(148, "        ");
    unsigned sum = 0;
    for (const char c : header) sum += static_cast<unsigned char>(c);
    set(148, fmt::format("{:06o}", sum) + std::string("\0 ", 2));
    std::string padded = data;
    padded.resize((data.size() + 511) / 512 * 512);
    return header + padded;
  }
};

const std::string kEnd(1024, '\0');

std::string tar(const std::vector<TarEntry>& entries) {
  std::string bytes;
  for (const TarEntry& entry : entries) bytes += entry.bytes();
  return bytes + kEnd;
}

std::vector<Binary> two_binaries() {
  std::vector<Binary> binaries{sample_binary("b", 700), sample_binary("a", 1024)};
  binaries[1].kind = "object";
  binaries[1].arch = "x86-64-v3";
  return binaries;  // sorted by key, which the tests below rely on
}

std::vector<TarEntry> two_entries() {
  std::vector<TarEntry> entries{{"manifest.json", manifest_text(two_binaries(), {"nvrtc 13.0"})}};
  for (const Binary& binary : two_binaries()) entries.push_back({binary.key, binary.data});
  return entries;
}

void expect_same_binaries(const std::vector<Binary>& a, const std::vector<Binary>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(a[i].key, b[i].key);
    EXPECT_EQ(a[i].arch, b[i].arch);
    EXPECT_EQ(a[i].kind, b[i].kind);
    EXPECT_EQ(a[i].sha256, b[i].sha256);
    EXPECT_TRUE(a[i].data == b[i].data);
  }
}

// What a refusal says; empty if there is none.
std::string refusal_of(const std::function<void()>& read, ErrorCode code = ErrorCode::invalid_argument) {
  try {
    read();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    return error.what();
  }
  return "";
}
std::string refusal_of(const std::string& bytes) {
  return refusal_of([&] { parse_binary_archive("kernels.tar", bytes); });
}

void expect_refused(const std::string& what, const std::string& bytes, const std::string& words) {
  const std::string said = refusal_of(bytes);
  EXPECT_NE(said.find("kernels.tar"), std::string::npos) << what << ": '" << said << "'";
  EXPECT_NE(said.find(words), std::string::npos) << what << ": '" << said << "'";
}

// Faults: bytes that change on the way, an empty file that is lost; the time, the user or the order of rows in the archive.
TEST(BinaryArchive, ComesBackByteForByteAndIsTheSameEachTime) {
  std::vector<Binary> binaries{sample_binary("a", 100'000), sample_binary("b", 512), sample_binary("c", 0), sample_binary("d", 1)};
  const std::string bytes = binary_archive(binaries, {"llvm 19", "nvrtc 13.0"});
  std::reverse(binaries.begin(), binaries.end());
  EXPECT_TRUE(binary_archive(binaries, {"nvrtc 13.0", "llvm 19"}) == bytes);
  std::sort(binaries.begin(), binaries.end(), [](const Binary& a, const Binary& b) { return a.key < b.key; });
  expect_same_binaries(parse_binary_archive("kernels.tar", bytes), binaries);

  const auto field = [&](size_t header, size_t at, size_t size) { return bytes.substr(header + at, size); };
  std::vector<std::string> names;
  for (size_t header = 0; bytes[header] != '\0';) {
    names.emplace_back(bytes.c_str() + header);
    for (const auto& [at, size] : {std::pair<size_t, size_t>{108, 7}, {116, 7}, {136, 11}}) EXPECT_EQ(field(header, at, size).find_first_not_of("0 "), std::string::npos) << "user, group or time";
    EXPECT_EQ(field(header, 265, 64), std::string(64, '\0')) << "names of user and group";
    EXPECT_EQ(field(header, 257, 8), std::string("ustar\0" "00", 8));
    header += 512 + (std::stoul(field(header, 124, 11), nullptr, 8) + 511) / 512 * 512;
  }
  ASSERT_EQ(names.size(), 5u);
  EXPECT_EQ(names[0], "manifest.json");
  EXPECT_TRUE(std::is_sorted(names.begin() + 1, names.end()));
  const Json manifest = Json::parse(bytes.substr(512, std::stoul(field(0, 124, 11), nullptr, 8)));
  EXPECT_EQ(manifest["compilers"], Json({"llvm 19", "nvrtc 13.0"}));
  for (size_t i = 0; i < binaries.size(); ++i)
    EXPECT_EQ(manifest["binaries"][i], Json({{"key", binaries[i].key}, {"target", "sm_90a"}, {"kind", "cubin"}, {"size", binaries[i].data.size()}, {"sha256", binaries[i].sha256}}));
}

// Fault: an archive is written that nobody can read.
TEST(BinaryArchive, IsNotWrittenOfWhatWouldBeRefused) {
  Binary binary = sample_binary("a");
  binary.arch = "two words";
  EXPECT_NE(refusal_of([&] { binary_archive({binary}, {}); }).find("target"), std::string::npos);
  binary = sample_binary("a");
  binary.data += 'x';
  EXPECT_NE(refusal_of([&] { binary_archive({binary}, {}); }).find("sha256"), std::string::npos);
  EXPECT_NE(refusal_of([&] { binary_archive({sample_binary("a"), sample_binary("a")}, {}); }).find("twice"), std::string::npos);
}

// Faults: a link, a device or a directory taken for a binary; a name that leaves the archive; a header of a kind that changes the next one.
TEST(BinaryArchive, TakesRegularFilesNamedByAKeyAndNothingElse) {
  expect_same_binaries(parse_binary_archive("kernels.tar", tar(two_entries())), two_binaries());  // what is spoilt below is right before
  const auto spoilt = [](const std::function<void(std::vector<TarEntry>&)>& spoil) {
    std::vector<TarEntry> entries = two_entries();
    spoil(entries);
    return tar(entries);
  };
  for (const char type : {'1', '2', '3', '4', '5', '6'}) {
    for (const size_t which : {0, 2}) {
      const std::string what = fmt::format("entry {} of type {}", which, type);
      expect_refused(what, spoilt([&](auto& entries) { entries[which].type = type, entries[which].link = entries[1].name; }), "it is no regular file");
      expect_refused(what + " without data", spoilt([&](auto& entries) { entries[which].type = type, entries[which].link = entries[1].name, entries[which].data.clear(); }), "it is no regular file");
    }
  }
  const std::string key = two_entries()[2].name;
  std::string upper = key;
  std::transform(upper.begin(), upper.end(), upper.begin(), [](char c) { return static_cast<char>(std::toupper(static_cast<unsigned char>(c))); });
  ASSERT_NE(upper, key);
  for (const std::string& name : {"/" + key, "../" + key, "./" + key, key + "0", key.substr(1), upper, std::string("x"), std::string(), sha256_hex("other"), std::string("/etc/passwd")})
    expect_refused("name '" + name + "'", spoilt([&](auto& entries) { entries[2].name = name; }), "its name is not one of those");
  expect_refused("prefix", spoilt([](auto& entries) { entries[2].prefix = "folder"; }), "its name is not one of those");
  expect_refused("twice", spoilt([](auto& entries) { entries.push_back(entries[2]); }), "its name is not one of those");
  expect_refused("a second manifest", spoilt([](auto& entries) { entries.push_back(entries[0]); }), "its name is not one of those");
  expect_refused("no manifest", spoilt([](auto& entries) { entries.erase(entries.begin()); }), "its first entry is not manifest.json");
  expect_refused("a manifest at the end", spoilt([](auto& entries) { std::swap(entries[0], entries[2]); }), "its first entry is not manifest.json");
  expect_refused("nothing", kEnd, "its first entry is not manifest.json");

  expect_refused("pax", spoilt([&](auto& entries) { entries.insert(entries.begin() + 2, {"pax", fmt::format("73 path={}\n", key), 'x'}); }), "entry 3: it is no regular file");
  expect_refused("pax, global", spoilt([&](auto& entries) { entries.insert(entries.begin(), {"pax", "14 comment=ab\n", 'g'}); }), "entry 1: it is no regular file");
  const std::string gnu("ustar  \0", 8);
  expect_refused("GNU", spoilt([&](auto& entries) { entries[2].magic = gnu; }), "entry 3: it does not begin with a header of POSIX ustar");
  expect_refused("GNU, a long name", spoilt([&](auto& entries) { entries.insert(entries.begin() + 2, {"././@LongLink", key + '\0', 'L'}); }), "entry 3: it is no regular file");
  expect_refused("an unknown kind without a name", spoilt([&](auto& entries) { entries.insert(entries.begin() + 2, {"", "", 'Z'}); }), "entry 3: it is no regular file");
  expect_refused("old", spoilt([](auto& entries) { entries[0].magic.clear(); }), "entry 1: it does not begin with a header of POSIX ustar");
}

// Faults: other bytes than the manifest's under a key; one that is missing without a word; bytes that nobody looked at.
TEST(BinaryArchive, HoldsWhatItsManifestSays) {
  std::vector<TarEntry> entries = two_entries();
  entries[1].data[3] ^= 1;
  expect_refused("a flipped bit", tar(entries), "entry 2: the sha256 of binary");
  entries = two_entries();
  entries[1].data += 'x';
  expect_refused("longer", tar(entries), "has 701 bytes where manifest.json says 700");
  entries = two_entries();
  entries.pop_back();
  expect_refused("missing", tar(entries), "1 of the binaries that manifest.json lists are missing, among them " + two_binaries()[1].key);
  expect_refused("something behind", tar(two_entries()) + std::string(511, '\0') + "x", "there is something behind its end");
  expect_refused("something behind at once", tar(two_entries()).append("x"), "there is something behind its end");
  EXPECT_EQ(refusal_of(tar(two_entries()) + std::string(8192, '\0')), "") << "blocks of other programs' tar are larger";
}

// Faults: half an archive is taken for a whole one; a size in a header is believed.
TEST(BinaryArchive, IsRefusedWhereverItIsCut) {
  const std::string whole = tar(two_entries());
  for (size_t size = 0; size < whole.size(); size += size % 512 > 500 || size % 512 < 12 ? 1 : 50) expect_refused(fmt::format("{} bytes", size), whole.substr(0, size), "nothing of it is taken in");
  std::string without_end;
  for (const TarEntry& entry : two_entries()) without_end += entry.bytes();
  expect_refused("no end", without_end, "without the two empty blocks");
  expect_refused("half an end", without_end + std::string(512, '\0'), "without the two empty blocks");
  for (const char* size : {"77777777777 ", "00000004001 "}) {
    std::vector<TarEntry> entries = two_entries();
    entries[2].size = size;
    expect_refused(size, tar(entries), "it is cut off: its header says");
  }
  std::vector<TarEntry> entries = two_entries();
  entries[2].size = std::string(12, '\xff');  // -1 in the binary form
  EXPECT_NE(refusal_of(tar(entries)), "");
  std::string flipped = whole;
  flipped[1] = 'A';
  expect_refused("a header's sum", flipped, "damaged");
  expect_refused("compressed", "\x1f\x8b\x08" + whole, "it is no tar file");
  expect_refused("text", std::string(2000, 'x'), "it is no tar file");
}

// Faults: a manifest with parts that nobody checked, or of a size that takes all memory.
TEST(BinaryArchive, RefusesAManifestThatIsNotAsPagetuneWritesIt) {
  const Json right = Json::parse(two_entries()[0].data);
  const auto expect_manifest = [&](const std::function<void(Json&)>& spoil, const std::string& words) {
    std::vector<TarEntry> entries = two_entries();
    Json json = right;
    spoil(json);
    entries[0].data = json.dump();
    expect_refused(words, tar(entries), words);
  };
  EXPECT_EQ(refusal_of(tar(two_entries())), "");
  expect_manifest([](Json& json) { json = Json::array(); }, "the whole of manifest.json of kernels.tar must be an object");
  expect_manifest([](Json& json) { json["more"] = 1; }, "unknown key 'more'");
  expect_manifest([](Json& json) { json.erase("compilers"); }, "lacks the key 'compilers'");
  expect_manifest([](Json& json) { json["format"] = 2; }, "is 2; this build reads 1");
  expect_manifest([](Json& json) { json["pagetune_version"] = 1; }, "pagetune_version");
  expect_manifest([](Json& json) { json["compilers"] = "nvrtc"; }, "compilers");
  expect_manifest([](Json& json) { json["binaries"] = 1; }, "binaries of manifest.json of kernels.tar must be a list");
  expect_manifest([](Json& json) { json["binaries"] = Json::array(); }, "has 0 entries");
  expect_manifest([](Json& json) { json["binaries"][1] = "x"; }, "binaries[1] of manifest.json of kernels.tar must be an object");
  expect_manifest([](Json& json) { json["binaries"][1]["path"] = "x"; }, "unknown key 'path'");
  expect_manifest([](Json& json) { json["binaries"][1].erase("size"); }, "lacks the key 'size'");
  expect_manifest([](Json& json) { json["binaries"].push_back(json["binaries"][0]); }, "which is there twice");
  expect_manifest([](Json& json) { json["binaries"][0]["key"] = "../../x"; }, "binaries[0].key");
  expect_manifest([](Json& json) { json["binaries"][0]["sha256"] = std::string(64, 'A'); }, "binaries[0].sha256");
  expect_manifest([](Json& json) { json["binaries"][0]["kind"] = "script"; }, "must be cubin or object");
  expect_manifest([](Json& json) { json["binaries"][0]["target"] = "\x1b[2J"; }, "must be the name of an architecture");
  expect_manifest([](Json& json) { json["binaries"][0]["target"] = std::string(65, 'a'); }, "must be the name of an architecture");
  expect_manifest([](Json& json) { json["binaries"][0]["size"] = -1; }, "must not be negative");
  expect_manifest([](Json& json) { json["binaries"][0]["size"] = int64_t{1} << 40; }, "size");
  expect_manifest([](Json& json) { json["binaries"][0]["size"] = kMostBinaryBytes; }, "more than 536870912 bytes together");
  expect_manifest([](Json& json) { json["binaries"] = std::vector<Json>(kMostArchivedBinaries + 1); }, "has 50001 entries");
  std::vector<TarEntry> entries = two_entries();
  entries[0].data += std::string(kLargestManifest, ' ');
  expect_refused("large", tar(entries), "16777216 are allowed");
  entries[0].data = R"({"format": 1, "format": 1})";
  expect_refused("doubled", tar(entries), "format");
  entries[0].data = "{";
  expect_refused("no JSON", tar(entries), "line 1");
}

// Faults: code is taken from a file that another user can change, or through a link; a FIFO is waited for; a huge file fills the memory.
TEST(BinaryArchive, IsReadOfATrustedFileOnly) {
  TempDir dir;
  const std::string path = dir / "kernels.tar";
  const auto said = [](const std::string& file) {
    return refusal_of([&] { read_binary_archive(file); }, ErrorCode::io);
  };
  write_file(path, tar(two_entries()));
  ASSERT_EQ(chmod(path.c_str(), 0644), 0);
  expect_same_binaries(read_binary_archive(path), two_binaries());
  for (const mode_t mode : {0664, 0646}) {
    ASSERT_EQ(chmod(path.c_str(), mode), 0);
    EXPECT_NE(said(path).find("others can write it"), std::string::npos) << said(path);
  }
  ASSERT_EQ(chmod(path.c_str(), 0644), 0);
  fs::create_symlink(path, dir / "link.tar");
  EXPECT_NE(said(dir / "link.tar").find("it is a link"), std::string::npos) << said(dir / "link.tar");
  ASSERT_EQ(mkfifo((dir / "fifo.tar").c_str(), 0600), 0);
  EXPECT_NE(said(dir / "fifo.tar").find("it is not a regular file"), std::string::npos) << said(dir / "fifo.tar");
  EXPECT_NE(said(dir.path()).find("it is not a regular file"), std::string::npos);
  EXPECT_NE(said(dir / "none.tar").find("No such file"), std::string::npos);
  fs::resize_file(path, (uintmax_t{640} << 20) + 1);
  EXPECT_NE(said(path).find("671088640 are allowed"), std::string::npos) << said(path);
}

// Fault: code of another user is taken.
TEST(BinaryArchive, OfAnotherUserIsNotRead) {
  if (geteuid() != 0) GTEST_SKIP() << "THIS TEST DID NOT RUN: only root can give a file to another user";
  TempDir dir;
  const std::string path = dir / "kernels.tar";
  write_file(path, tar(two_entries()));
  ASSERT_EQ(chown(path.c_str(), 12345, 12345), 0);
  const std::string said = refusal_of([&] { read_binary_archive(path); }, ErrorCode::io);
  EXPECT_NE(said.find("it belongs to user 12345"), std::string::npos) << said;
  EXPECT_NE(said.find("copy it"), std::string::npos) << said;
}

// Faults: archives are read as tables, which says something of JSON; or tables as archives.
TEST(BinaryArchive, IsKnownByItsNameOrItsMark) {
  TempDir dir;
  write_file(dir / "marked", tar(two_entries()));
  write_file(dir / "empty.tar", "");
  write_file(dir / "table.json", std::string(600, ' '));
  EXPECT_TRUE(is_binary_archive(dir / "marked"));
  EXPECT_TRUE(is_binary_archive(dir / "empty.tar"));
  EXPECT_FALSE(is_binary_archive(dir / "table.json"));
  EXPECT_FALSE(is_binary_archive(dir.path()));
}

// Faults: the store's own code gives way to somebody's; an import that fails leaves a part; wrong rows are shipped; a look for export counts as use.
TEST(StoreBinaries, OfOthersComeInBesideItsOwn) {
  TempDir dir;
  Binary own = sample_binary("a"), other = sample_binary("other");
  other.key = own.key;
  Binary bad = sample_binary("bad");
  bad.data += 'x';
  auto store = Store::open(dir.path());
  store->put_binary(own);
  EXPECT_THROW(store->add_binaries({sample_binary("b"), bad}), Error);
  expect_same_binaries(store->all_binaries(), {own});
  EXPECT_EQ(store->add_binaries({other, sample_binary("b")}), 1);
  expect_same_binaries(Store::open(dir.path())->all_binaries(), {sample_binary("b"), own});  // by key
  EXPECT_TRUE(store->problems().empty());

  SQLite::Database(dir / "kernels.db", SQLite::OPEN_READWRITE).exec("UPDATE blob SET last_used_day=7");
  SQLite::Database(dir / "kernels.db", SQLite::OPEN_READWRITE).exec("UPDATE blob SET data=x'00' WHERE binary_key='" + own.key + "'");
  expect_same_binaries(store->all_binaries(), {sample_binary("b")});
  ASSERT_EQ(store->problems().size(), 1u);
  EXPECT_NE(store->problems()[0].find("1 of its binaries are wrong"), std::string::npos) << store->problems()[0];
  EXPECT_EQ(SQLite::Database(dir / "kernels.db", SQLite::OPEN_READONLY).execAndGet("SELECT max(last_used_day) FROM blob").getInt(), 7);
}

// Fault: an import says that it is done where nothing can be kept.
TEST(StoreBinaries, OfOthersNeedAFile) {
  auto store = Store::open(":memory:");
  EXPECT_EQ(store->add_binaries({sample_binary("a")}), std::nullopt);
  EXPECT_TRUE(store->all_binaries().empty());
}

// Fault: the limit of kernels.db holds for what is compiled and not for what is taken in; or the newest go.
TEST(StoreBinaries, TheLimitHoldsForThoseOfOthersToo) {
  TempDir dir;
  Problems problems;
  BinaryTable table(dir.path(), problems, 10'000);
  table.put(sample_binary("old", 4000));
  SQLite::Database(dir / "kernels.db", SQLite::OPEN_READWRITE).exec("UPDATE blob SET last_used_day=100");
  table.put(sample_binary("new", 4000));
  EXPECT_EQ(table.add({sample_binary("a", 3000), sample_binary("b", 2500)}), 2);
  EXPECT_EQ(table.usage()->bytes, 9500);
  EXPECT_FALSE(table.find(sha256_hex("old")));
  for (const char* name : {"new", "a", "b"}) EXPECT_TRUE(table.find(sha256_hex(name))) << name;
  EXPECT_EQ(table.add({sample_binary("c", 6000), sample_binary("d", 6000)}), 2);
  EXPECT_LE(table.usage()->bytes, 10'000);
}

}  // namespace
}  // namespace pagetune
