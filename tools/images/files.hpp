// Files in and out, with messages that hold the path and the reason.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "wtconv/status.hpp"

namespace wtconv::images {

// More than any data set or picture this tool reads; a larger file (or device) is refused, not loaded.
inline constexpr std::size_t max_file_bytes = std::size_t{1} << 30;

// "cannot read 'path': reason"
Status read_file(const std::string& path, std::vector<std::byte>& bytes);
// All of it or nothing: a temporary file beside `path` is renamed over it.
Status write_file(const std::string& path, std::span<const std::byte> bytes);
// ok, or why `path` cannot be written: its folder does not exist, it is a folder, or it is one of the `inputs`.
Status check_output(const std::string& path, std::span<const std::string> inputs = {});

// The content of a gzip file, or a copy of `bytes` if they are not gzip. `limit` bounds what comes out.
Status gunzip(std::span<const std::byte> bytes, std::vector<std::byte>& out, std::size_t limit = max_file_bytes);

}  // namespace wtconv::images
