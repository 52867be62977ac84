#include "runtime/cuda/cubin.hpp"

#include <elf.h>

#include <cstring>
#include <string_view>

#include "pagetune/error.hpp"

namespace pagetune::cuda {
namespace {

[[noreturn]] void damaged(const std::string& what) { throw Error(ErrorCode::io, "damaged cubin: " + what); }

// Bounds-checked views into the image: nothing in it is trusted.
class Elf {
 public:
  explicit Elf(std::string_view image) : image_(image) {
    const auto header = read<Elf64_Ehdr>(0, "header");
    if (std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 || header.e_ident[EI_CLASS] != ELFCLASS64) damaged("not a 64-bit ELF file");
    if (header.e_shentsize != sizeof(Elf64_Shdr)) damaged("unexpected section header size");
    for (unsigned i = 0; i < header.e_shnum; ++i) sections_.push_back(read<Elf64_Shdr>(header.e_shoff + i * sizeof(Elf64_Shdr), "section header"));
    // A truncated image is damaged even where the lost part is not looked at here.
    for (const auto& section : sections_) bytes(section);
    for (unsigned i = 0; i < header.e_phnum; ++i) read<Elf64_Phdr>(header.e_phoff + i * sizeof(Elf64_Phdr), "program header");
    if (header.e_shstrndx >= sections_.size()) damaged("no section names");
    names_ = bytes(sections_[header.e_shstrndx]);
  }

  const std::vector<Elf64_Shdr>& sections() const { return sections_; }
  std::string_view name(const Elf64_Shdr& section) const { return text(names_, section.sh_name); }

  std::string_view bytes(const Elf64_Shdr& section) const {
    if (section.sh_type == SHT_NOBITS) return {};
    if (section.sh_offset > image_.size() || section.sh_size > image_.size() - section.sh_offset) damaged("a section ends beyond the file");
    return image_.substr(section.sh_offset, section.sh_size);
  }

  const Elf64_Shdr* find(std::string_view wanted) const {
    for (const auto& section : sections_)
      if (name(section) == wanted) return &section;
    return nullptr;
  }

  struct Symbol {
    std::string_view name;
    Elf64_Sym sym;
    unsigned index;
  };
  std::vector<Symbol> symbols() const {
    std::vector<Symbol> all;
    for (const auto& section : sections_) {
      if (section.sh_type != SHT_SYMTAB) continue;
      if (section.sh_link >= sections_.size()) damaged("symbols without names");
      const std::string_view strings = bytes(sections_[section.sh_link]);
      const std::string_view table = bytes(section);
      for (size_t at = 0; at + sizeof(Elf64_Sym) <= table.size(); at += sizeof(Elf64_Sym)) {
        Elf64_Sym sym;
        std::memcpy(&sym, table.data() + at, sizeof sym);
        all.push_back({text(strings, sym.st_name), sym, static_cast<unsigned>(at / sizeof sym)});
      }
    }
    return all;
  }

 private:
  template <class T>
  T read(size_t at, const char* what) const {
    if (at > image_.size() || sizeof(T) > image_.size() - at) damaged(std::string("truncated ") + what);
    T value;
    std::memcpy(&value, image_.data() + at, sizeof value);
    return value;
  }
  static std::string_view text(std::string_view strings, size_t at) {
    if (at >= strings.size()) damaged("a name lies beyond its table");
    const size_t end = strings.find('\0', at);
    if (end == std::string_view::npos) damaged("an unterminated name");
    return strings.substr(at, end - at);
  }

  std::string_view image_;
  std::vector<Elf64_Shdr> sections_;
  std::string_view names_;
};

// Attributes of NVIDIA's .nv.info sections: one byte of format, one of attribute, two of size (format 4) or value.
enum : unsigned char { kFormatSized = 4, kFrameSize = 0x11, kRegisterCount = 0x2f };

// A (symbol, value) attribute of .nv.info; -1 if it is not there.
int info_value(std::string_view info, unsigned char attribute, unsigned symbol) {
  size_t at = 0;
  while (at + 4 <= info.size()) {
    const auto format = static_cast<unsigned char>(info[at]), kind = static_cast<unsigned char>(info[at + 1]);
    unsigned short size = 0;
    std::memcpy(&size, info.data() + at + 2, 2);
    at += 4;
    if (format != kFormatSized) continue;  // the value stood in the size field
    if (size > info.size() - at) damaged("an attribute ends beyond .nv.info");
    if (kind == attribute && size >= 8) {
      unsigned words[2];
      std::memcpy(words, info.data() + at, 8);
      if (words[0] == symbol) return static_cast<int>(words[1]);
    }
    at += size;
  }
  return -1;
}

}  // namespace

LaunchFacts read_cubin(const std::string& data, const std::string& entry) {
  const Elf elf(data);
  LaunchFacts facts;
  bool found_facts = false;
  int entry_symbol = -1;
  for (const auto& [name, sym, index] : elf.symbols()) {
    if (name == entry) entry_symbol = static_cast<int>(index);
    if (name != "pt_facts") continue;
    if (sym.st_shndx >= elf.sections().size()) damaged("pt_facts lies in no section");
    const std::string_view bytes = elf.bytes(elf.sections()[sym.st_shndx]);
    int values[kTemplateFacts];
    if (sym.st_value > bytes.size() || sizeof values > bytes.size() - sym.st_value) damaged("pt_facts ends beyond its section");
    std::memcpy(values, bytes.data() + sym.st_value, sizeof values);
    facts.params_size = values[0];
    facts.params_version = values[1];
    facts.variant = values[2];
    facts.threads = values[3];
    facts.shared_bytes = values[4];
    facts.tile_tokens = values[5];
    facts.rows_per_cta = values[6];
    facts.head_tiles = values[7];
    facts.merge_threads = values[8];
    facts.kv_heads = values[9];
    facts.q_heads = values[10];
    facts.even_share = values[11];
    facts.cluster = values[12];
    facts.box_tokens = values[13];
    facts.page_size = values[14];
    facts.head_dim_k = values[15];
    facts.head_dim_v = values[16];
    facts.flat_map = values[17];
    facts.dtype = values[18];
    found_facts = true;
  }
  if (!found_facts) damaged("no symbol pt_facts");
  if (entry_symbol < 0) damaged("no kernel " + entry);
  if (const auto* info = elf.find(".nv.info")) {
    facts.registers = info_value(elf.bytes(*info), kRegisterCount, static_cast<unsigned>(entry_symbol));
    facts.local_bytes = info_value(elf.bytes(*info), kFrameSize, static_cast<unsigned>(entry_symbol));
  }
  if (facts.registers <= 0 || facts.local_bytes < 0) damaged("no register count of " + entry);
  if (const auto* shared = elf.find(".nv.shared." + entry)) facts.static_shared_bytes = static_cast<int>(shared->sh_size);
  return facts;
}

std::vector<std::string> kernels_of(const std::string& data) {
  const Elf elf(data);
  std::vector<std::string> names;
  constexpr std::string_view kText = ".text.";
  for (const auto& section : elf.sections())
    if (elf.name(section).starts_with(kText)) names.emplace_back(elf.name(section).substr(kText.size()));
  return names;
}

}  // namespace pagetune::cuda
