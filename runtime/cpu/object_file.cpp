#include "runtime/cpu/object_file.hpp"

#include <array>
#include <cstdint>
#include <cstring>
#include <nlohmann/json.hpp>

#include <llvm/Object/ELFObjectFile.h>
#include <llvm/Object/ObjectFile.h>

#include "codegen/sha256.hpp"
#include "pagetune/error.hpp"
#include "pagetune/params.h"
#include "runtime/cpu/llvm_setup.hpp"

namespace pagetune {
namespace {

constexpr std::string_view kMagic = "ptcpuob1";
constexpr size_t kChecksum = 64;  // sha256 of all before it, hex
constexpr size_t kTail = kChecksum + 4 + kMagic.size();

[[noreturn]] void damaged(const std::string& what) {
  throw Error(ErrorCode::io, "the stored CPU object cannot be used: " + what + "; it must be compiled again");
}

std::array<int32_t, kTemplateFacts> facts_words(std::string_view elf) {
  auto object = llvm::object::ObjectFile::createELFObjectFile(llvm::MemoryBufferRef(llvm::StringRef(elf.data(), elf.size()), "kernel"));
  if (!object) damaged(text_of(object.takeError()));
  for (const llvm::object::SymbolRef& symbol : (*object)->symbols()) {
    auto name = symbol.getName();
    if (!name) damaged(text_of(name.takeError()));
    if (*name != "pt_facts") continue;
    auto section = symbol.getSection();
    auto offset = symbol.getValue();  // in a relocatable object: from the start of its section
    if (!section) damaged(text_of(section.takeError()));
    if (!offset) damaged(text_of(offset.takeError()));
    if (*section == (*object)->section_end()) damaged("symbol pt_facts has no section");
    auto contents = (*section)->getContents();
    if (!contents) damaged(text_of(contents.takeError()));
    std::array<int32_t, kTemplateFacts> words{};
    if (*offset > contents->size() || contents->size() - *offset < sizeof words) damaged("symbol pt_facts is cut short");
    std::memcpy(words.data(), contents->data() + *offset, sizeof words);
    return words;
  }
  damaged("it has no symbol pt_facts");
}

LaunchFacts facts_of(std::string_view elf) {
  const auto words = facts_words(elf);
  LaunchFacts facts;
  facts.params_size = words[0];
  facts.params_version = words[1];
  facts.variant = words[2];
  facts.threads = words[3];
  facts.shared_bytes = words[4];
  facts.tile_tokens = words[5];
  facts.rows_per_cta = words[6];
  facts.head_tiles = words[7];
  facts.merge_threads = words[8];
  facts.kv_heads = words[9];
  facts.q_heads = words[10];
  if (facts.params_size != static_cast<int>(sizeof(pt_decode_params)) || facts.params_version != static_cast<int>(PT_PARAMS_VERSION))
    damaged("its launch parameters have " + std::to_string(facts.params_size) + " bytes and version " +
            std::to_string(facts.params_version) + ", this build's " + std::to_string(sizeof(pt_decode_params)) + " and " +
            std::to_string(PT_PARAMS_VERSION));
  if ((facts.variant != 1 && facts.variant != 2) || facts.tile_tokens < 1 || facts.rows_per_cta < 1 || facts.head_tiles < 1 ||
      facts.kv_heads < 1 || facts.q_heads < facts.kv_heads)
    damaged("its facts make no sense");
  return facts;
}

}  // namespace

std::string seal_object(std::string_view elf, const ObjectFooter& footer) {
  const std::string text = nlohmann::json{
      {"arch", footer.arch}, {"bytes", elf.size()}, {"compiler", footer.compiler}, {"cpu_features", footer.cpu_features}}
                               .dump();
  std::string data(elf);
  data += text;
  data += sha256_hex(data);
  for (int shift = 0; shift < 32; shift += 8) data += static_cast<char>(text.size() >> shift & 0xff);
  data += kMagic;
  return data;
}

OpenedObject open_object(const std::string& data, const std::string& compiler) {
  const std::string_view all = data;
  if (all.size() < kTail || !all.ends_with(kMagic)) damaged("its last bytes are not a CPU object's");
  const std::string_view body = all.substr(0, all.size() - kTail);
  if (all.substr(body.size(), kChecksum) != sha256_hex(body)) damaged("its checksum differs");
  size_t length = 0;
  for (size_t i = 0; i < 4; ++i) length |= static_cast<size_t>(static_cast<unsigned char>(all[body.size() + kChecksum + i])) << (8 * i);
  if (length > body.size()) damaged("its footer is longer than the file");
  OpenedObject opened;
  opened.elf = body.substr(0, body.size() - length);
  try {
    const auto footer = nlohmann::json::parse(body.substr(opened.elf.size()));
    opened.footer = {footer.at("arch"), footer.at("cpu_features"), footer.at("compiler")};
    if (footer.at("bytes") != opened.elf.size()) damaged("its size differs from its footer's");
  } catch (const nlohmann::json::exception& error) {
    damaged(std::string("its footer cannot be read (") + error.what() + ")");
  }
  if (opened.footer.compiler != compiler) damaged("it was made by '" + opened.footer.compiler + "', this build is '" + compiler + "'");
  opened.facts = facts_of(opened.elf);
  return opened;
}

}  // namespace pagetune
