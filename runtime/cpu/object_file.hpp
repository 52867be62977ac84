// The stored form of a compiled CPU kernel: an ELF object, a JSON footer, the sha256 of both, the footer's length (4 bytes, little
// endian) and a magic. ELF readers ignore what follows the object, so objdump and gdb still open it.
#pragma once
#include <string>
#include <string_view>

#include "codegen/binary.hpp"

namespace pagetune {

struct ObjectFooter {
  std::string arch;
  std::string cpu_features;
  std::string compiler;  // Compiler::identity()
};

std::string seal_object(std::string_view elf, const ObjectFooter&);

struct OpenedObject {
  std::string_view elf;  // into the sealed bytes
  ObjectFooter footer;
  LaunchFacts facts;
};

// Checks magic, length, checksum, compiler and facts. Error io with what is wrong; never reads beyond `data`.
OpenedObject open_object(const std::string& data, const std::string& compiler);

}  // namespace pagetune
