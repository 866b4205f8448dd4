// Hands out pieces of the workspace, as a framework's allocator does with its memory.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>

namespace wtconv::unfused {

// First fit; a piece returns when its last owner goes.
class Arena {
 public:
  // Null: the addresses are made up, for a run that only measures.
  explicit Arena(void* memory) : base_(memory ? reinterpret_cast<std::uintptr_t>(memory) : alignment) {}
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  std::shared_ptr<void> allocate(std::size_t bytes) {
    bytes = std::max((bytes + alignment - 1) / alignment, std::size_t{1}) * alignment;
    std::size_t offset = 0;
    for (const auto& [begin, size] : used_) {
      if (begin - offset >= bytes) break;
      offset = begin + size;
    }
    used_[offset] = bytes;
    peak_ = std::max(peak_, offset + bytes);
    return {reinterpret_cast<void*>(base_ + offset), [this, offset](void*) { used_.erase(offset); }};
  }
  std::size_t peak() const { return peak_; }

 private:
  static constexpr std::size_t alignment = 256;
  std::uintptr_t base_;
  std::map<std::size_t, std::size_t> used_;  // offset -> bytes
  std::size_t peak_ = 0;
};

}  // namespace wtconv::unfused
