#include "images/files.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

namespace wtconv::images {
namespace {

namespace fs = std::filesystem;

Status failed(const char* what, const std::string& path, const std::string& why) {
  return {StatusCode::invalid_argument, std::string("cannot ") + what + " '" + path + "': " + why};
}

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() { close(); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }
  bool close() {  // false if the system reports a late write error
    const int fd = std::exchange(fd_, -1);
    return fd < 0 || ::close(fd) == 0;
  }

 private:
  int fd_;
};

fs::path folder_of(const std::string& path) {
  const fs::path parent = fs::path(path).parent_path();
  return parent.empty() ? fs::path(".") : parent;
}

}  // namespace

Status read_file(const std::string& path, std::vector<std::byte>& bytes) {
  bytes.clear();
  Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.get() < 0) return failed("read", path, std::strerror(errno));
  struct stat info {};
  if (::fstat(file.get(), &info) != 0) return failed("read", path, std::strerror(errno));
  if (S_ISDIR(info.st_mode)) return failed("read", path, "it is a folder");
  const auto too_large = [&] {
    bytes.clear();
    return failed("read", path, "it is larger than " + std::to_string(max_file_bytes >> 20) + " MiB");
  };
  if (S_ISREG(info.st_mode) && std::size_t(info.st_size) > max_file_bytes) return too_large();
  std::size_t filled = 0;
  for (;;) {
    // One byte more than a regular file's size lets the loop see the end without growing again.
    const std::size_t expected = S_ISREG(info.st_mode) ? std::size_t(info.st_size) + 1 : 0;
    bytes.resize(std::min(std::max({expected, filled + filled / 2, filled + 65536}), max_file_bytes + 1));
    const ssize_t got = ::read(file.get(), bytes.data() + filled, bytes.size() - filled);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return failed("read", path, std::strerror(errno));
    filled += std::size_t(got);
    if (filled > max_file_bytes) return too_large();
    if (got == 0) break;
  }
  bytes.resize(filled);
  return {};
}

Status write_file(const std::string& path, std::span<const std::byte> bytes) {
  if (Status s = check_output(path); !s.ok()) return s;
  const std::string temporary =
      (folder_of(path) / ("." + fs::path(path).filename().string() + "." + std::to_string(::getpid()))).string();
  const auto give_up = [&](int error) {
    ::unlink(temporary.c_str());
    return failed("write", path, std::strerror(error));
  };
  Descriptor file(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
  if (file.get() < 0) return failed("write", path, std::strerror(errno));
  for (std::size_t done = 0; done < bytes.size();) {
    const ssize_t put = ::write(file.get(), bytes.data() + done, bytes.size() - done);
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) return give_up(errno);
    done += std::size_t(put);
  }
  if (!file.close()) return give_up(errno);
  if (::rename(temporary.c_str(), path.c_str()) != 0) return give_up(errno);
  return {};
}

Status check_output(const std::string& path, std::span<const std::string> inputs) {
  if (path.empty()) return failed("write", path, "the name is empty");
  std::error_code error;
  const fs::path folder = folder_of(path);
  if (!fs::exists(folder, error)) return failed("write", path, "folder '" + folder.string() + "' does not exist");
  if (!fs::is_directory(folder, error)) return failed("write", path, "'" + folder.string() + "' is not a folder");
  if (fs::is_directory(path, error)) return failed("write", path, "it is a folder");
  if (::access(folder.c_str(), W_OK) != 0) return failed("write", path, "folder: " + std::string(std::strerror(errno)));
  for (const std::string& input : inputs) {
    if (fs::equivalent(path, input, error)) return failed("write", path, "it is an input of this command");
  }
  return {};
}

Status gunzip(std::span<const std::byte> bytes, std::vector<std::byte>& out, std::size_t limit) {
  out.clear();
  if (bytes.size() < 2 || bytes[0] != std::byte{0x1f} || bytes[1] != std::byte{0x8b}) {
    out.assign(bytes.begin(), bytes.end());
    return {};
  }
  const auto corrupt = [&](const std::string& why) {
    out.clear();
    return Status{StatusCode::invalid_argument, "gzip data: " + why};
  };
  z_stream stream{};
  if (inflateInit2(&stream, 16 + MAX_WBITS) != Z_OK) return corrupt("zlib cannot start");
  struct Guard {
    z_stream* stream;
    ~Guard() { inflateEnd(stream); }
  } guard{&stream};
  // max_file_bytes fits zlib's 32-bit counter; larger spans are truncated and then reported as such.
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<std::byte*>(bytes.data()));
  stream.avail_in = static_cast<uInt>(std::min<std::size_t>(bytes.size(), ~uInt{0}));
  std::size_t filled = 0;
  for (;;) {
    if (filled == out.size()) out.resize(std::min(std::max<std::size_t>(65536, 2 * filled), limit + 1));
    const std::size_t room = std::min<std::size_t>(out.size() - filled, std::size_t{1} << 30);
    stream.next_out = reinterpret_cast<Bytef*>(out.data() + filled);
    stream.avail_out = static_cast<uInt>(room);
    const int code = inflate(&stream, Z_NO_FLUSH);
    filled += room - stream.avail_out;
    if (filled > limit) return corrupt("more than " + std::to_string(limit) + " bytes come out");
    if (code == Z_STREAM_END) {
      if (stream.avail_in == 0) break;
      if (inflateReset(&stream) != Z_OK) return corrupt("zlib cannot continue");  // gzip members may follow each other
      continue;
    }
    if (code == Z_BUF_ERROR || (code == Z_OK && stream.avail_in == 0 && stream.avail_out != 0)) {
      return corrupt("truncated after " + std::to_string(bytes.size()) + " bytes");
    }
    if (code != Z_OK) return corrupt(stream.msg ? stream.msg : "error " + std::to_string(code));
  }
  out.resize(filled);
  return {};
}

}  // namespace wtconv::images
