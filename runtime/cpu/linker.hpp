// Objects to executable memory, by ORC and JITLink. One dylib per kernel, so that releasing a kernel frees its memory.
#pragma once
#include <atomic>
#include <memory>
#include <string>
#include <string_view>

namespace pagetune {

class Linker : public std::enable_shared_from_this<Linker> {
 public:
  Linker();
  ~Linker();
  Linker(const Linker&) = delete;
  Linker& operator=(const Linker&) = delete;

  // A linked object; its code is mapped as long as this lives.
  class Linked {
   public:
    virtual ~Linked() = default;
    // Address of a symbol; Error io if the object does not define it.
    virtual void* address(const std::string& symbol) const = 0;
  };
  // Error io if the object cannot be linked: it is damaged or wants a symbol outside of the allow-list. Thread-safe.
  std::unique_ptr<Linked> link(std::string_view elf);

 private:
  struct Session;
  class LinkedDylib;
  std::unique_ptr<Session> session_;
  std::atomic<unsigned> next_name_{0};
};

}  // namespace pagetune
