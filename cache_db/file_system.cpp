#include "cache_db/file_system.hpp"

#include <fmt/format.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>

#include <algorithm>
#include <iterator>

namespace pagetune {
namespace {

// statfs(2), linux/magic.h and the file systems' own headers.
constexpr struct {
  uint32_t magic;
  const char* name;
  bool network;
} kKinds[] = {
    {0xef53, "ext4", false},       {0x58465342, "xfs", false},    {0x9123683e, "btrfs", false},  {0x01021994, "tmpfs", false},   {0x794c7630, "overlayfs", false}, {0x2fc12fc1, "zfs", false},
    {0xf2f52010, "f2fs", false},   {0x858458f6, "ramfs", false},  {0x73717368, "squashfs", false}, {0xca451a4e, "bcachefs", false}, {0x4d44, "vfat", false},
    {0x6969, "nfs", true},         {0xff534d42, "cifs", true},    {0xfe534d42, "smb2", true},    {0x517b, "smb", true},          {0x0bd00bd0, "lustre", true},
    {0x47504653, "gpfs", true},    {0x65735546, "fuse", true},    {0x01021997, "9p", true},      {0x19830326, "beegfs", true},   {0x00c36400, "ceph", true},
    {0x5346414f, "afs", true},     {0x6b414653, "kafs", true},    {0x73757245, "coda", true},    {0x7461636f, "ocfs2", true},    {0x01161970, "gfs2", true},
    {0xaad7aaea, "panfs", true},   {0x20030528, "orangefs", true}, {0xa501fcf5, "vxfs", true},
};

}  // namespace

FileSystemKind file_system_kind(uint64_t magic) {
  const auto* found = std::find_if(std::begin(kKinds), std::end(kKinds), [&](const auto& kind) { return kind.magic == magic; });
  return found == std::end(kKinds) ? FileSystemKind{fmt::format("{:#010x}", magic), false} : FileSystemKind{found->name, found->network};
}

std::optional<FileSystem> file_system_of(const std::string& path) {
  struct statfs kind {};
  struct statvfs space {};
  if (statfs(path.c_str(), &kind) != 0 || statvfs(path.c_str(), &space) != 0) return std::nullopt;
  FileSystem made;
  // f_type is signed and of the machine's word size.
  made.kind = file_system_kind(static_cast<uint32_t>(kind.f_type));
  made.free_bytes = static_cast<int64_t>(space.f_bavail) * static_cast<int64_t>(space.f_frsize);
  if (space.f_files > 0) made.free_inodes = static_cast<int64_t>(space.f_favail);
  made.read_only = (space.f_flag & ST_RDONLY) != 0;
  return made;
}

}  // namespace pagetune
