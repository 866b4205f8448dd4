// Readers of untrusted files, atomic writes, and the raster.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>
#include <zlib.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>

#include "images/canvas.hpp"
#include "images/files.hpp"
#include "images/image.hpp"

namespace wtconv::images {
namespace {

namespace fs = std::filesystem;
using Bytes = std::vector<std::byte>;

class Folder {
 public:
  Folder() {
    const std::string pattern(6, 'X');  // which mkdtemp replaces
    std::string name = (fs::temp_directory_path() / ("wtconv_images_" + pattern)).string();
    path_ = mkdtemp(name.data());
  }
  ~Folder() { fs::remove_all(path_); }
  std::string operator/(const char* name) const { return (path_ / name).string(); }
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

Bytes bytes_of(std::initializer_list<int> values) {
  Bytes b;
  for (int v : values) b.push_back(std::byte(v));
  return b;
}

void put(const std::string& path, const Bytes& bytes) {
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(bytes.data()), std::streamsize(bytes.size()));
}

Bytes gzip(const Bytes& plain) {
  z_stream s{};
  EXPECT_EQ(deflateInit2(&s, 9, Z_DEFLATED, 16 + MAX_WBITS, 8, Z_DEFAULT_STRATEGY), Z_OK);
  Bytes out(plain.size() + 1000);
  s.next_in = reinterpret_cast<Bytef*>(const_cast<std::byte*>(plain.data()));
  s.avail_in = uInt(plain.size());
  s.next_out = reinterpret_cast<Bytef*>(out.data());
  s.avail_out = uInt(out.size());
  EXPECT_EQ(deflate(&s, Z_FINISH), Z_STREAM_END);
  out.resize(s.total_out);
  deflateEnd(&s);
  return out;
}

Image pattern(int width, int height, int channels) {
  Image image{width, height, channels, {}};
  for (int i = 0; i < width * height * channels; ++i) image.pixels.push_back(std::uint8_t(i * 37 + i / 7));
  return image;
}

// 2 pictures of 2 x 3.
Bytes small_idx() {
  return bytes_of({0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 2, 0, 0, 0, 3, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 255});
}

bool contains(const Status& s, const std::string& text) {
  return !s.ok() && s.message().find(text) != std::string::npos;
}

TEST(Images, PngRoundTrip) {
  for (int channels : {1, 3}) {
    for (const auto& [w, h] : {std::pair{1, 1}, {7, 5}, {64, 33}}) {
      const Image image = pattern(w, h, channels);
      Bytes bytes;
      ASSERT_TRUE(encode_png(image, bytes).ok());
      Image again;
      const Status s = decode_image(bytes, again);
      ASSERT_TRUE(s.ok()) << s.message();
      EXPECT_EQ(image, again);
    }
  }
}

TEST(Images, EveryTruncationOfAPngIsRefused) {
  Bytes bytes;
  ASSERT_TRUE(encode_png(pattern(9, 8, 3), bytes).ok());
  // Up to the last chunk, which holds nothing.
  for (std::size_t n = 0; n + 12 < bytes.size(); ++n) {
    Image image = pattern(1, 1, 1);
    EXPECT_FALSE(decode_image(std::span(bytes).first(n), image).ok()) << n;
    EXPECT_TRUE(image.pixels.empty()) << n;
  }
}

TEST(Images, EveryCorruptByteOfAPngIsSafe) {
  Bytes bytes;
  ASSERT_TRUE(encode_png(pattern(9, 8, 1), bytes).ok());
  int refused = 0;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    Bytes broken = bytes;
    broken[i] ^= std::byte{0x5a};
    Image image;
    const Status s = decode_image(broken, image);
    if (s.ok()) {
      EXPECT_EQ(image.pixels.size(), std::size_t(image.width) * image.height * image.channels);
    } else {
      ++refused;
      EXPECT_FALSE(s.message().empty());
    }
  }
  EXPECT_GT(refused, int(bytes.size()) / 2);  // most bytes are under a checksum
}

TEST(Images, HugeHeaderIsRefusedBeforeItIsBelieved) {
  Bytes bytes;
  ASSERT_TRUE(encode_png(pattern(9, 8, 1), bytes).ok());
  // IHDR's width and height, and its checksum.
  for (std::size_t i = 16; i < 24; ++i) bytes[i] = std::byte(i % 4 < 2 ? 0 : 0xff);
  const uLong crc = crc32(0, reinterpret_cast<const Bytef*>(bytes.data()) + 12, 17);
  for (int i = 0; i < 4; ++i) bytes[29 + i] = std::byte(crc >> (24 - 8 * i));
  Image image;
  const Status s = decode_image(bytes, image);
  EXPECT_TRUE(contains(s, "65535 x 65535")) << s.message();
}

TEST(Images, OtherFilesAreRefused) {
  Image image;
  EXPECT_TRUE(contains(decode_image({}, image), "empty"));
  EXPECT_TRUE(contains(decode_image(bytes_of({'G', 'I', 'F', '8', '9', 'a'}), image), "neither PNG nor JPEG"));
  EXPECT_TRUE(contains(decode_image(bytes_of({0xff, 0xd8, 0xff, 0xe0, 0, 4}), image), "JPEG"));
  const Folder folder;
  put(folder / "x.png", bytes_of({1, 2, 3}));
  EXPECT_TRUE(contains(read_image(folder / "x.png", image), "x.png"));
  EXPECT_TRUE(contains(read_image(folder / "none.png", image), "none.png': No such file"));
  EXPECT_TRUE(contains(read_image(folder.path().string(), image), "folder"));
}

TEST(Idx, PlainAndGzip) {
  for (const Bytes& bytes : {small_idx(), gzip(small_idx())}) {
    Idx idx;
    const Status s = parse_idx(bytes, idx);
    ASSERT_TRUE(s.ok()) << s.message();
    EXPECT_EQ(idx.extents, (std::vector<std::int64_t>{2, 2, 3}));
    EXPECT_EQ(idx.values, (std::vector<std::uint8_t>{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 255}));
  }
}

TEST(Idx, EveryTruncationIsRefused) {
  for (const Bytes& bytes : {small_idx(), gzip(small_idx())}) {
    for (std::size_t n = 0; n < bytes.size(); ++n) {
      Idx idx;
      const Status s = parse_idx(std::span(bytes).first(n), idx);
      EXPECT_FALSE(s.ok()) << n;
      EXPECT_FALSE(s.message().empty());
      EXPECT_TRUE(idx.values.empty() && idx.extents.empty());
    }
  }
}

TEST(Idx, EveryRejectionNamesItsReason) {
  const auto with = [](std::size_t at, int value) {
    Bytes b = small_idx();
    b[at] = std::byte(value);
    return b;
  };
  Idx idx;
  EXPECT_TRUE(contains(parse_idx(with(0, 1), idx), "zero bytes"));
  EXPECT_TRUE(contains(parse_idx(with(2, 13), idx), "type 13"));
  EXPECT_TRUE(contains(parse_idx(with(3, 0), idx), "got 0"));
  EXPECT_TRUE(contains(parse_idx(with(3, 5), idx), "got 5"));
  EXPECT_TRUE(contains(parse_idx(with(7, 3), idx), "says 3 x 2 x 3 values, the file holds 12"));
  Bytes longer = small_idx();
  longer.push_back(std::byte{1});
  EXPECT_TRUE(contains(parse_idx(longer, idx), "holds 13"));
  // Extents whose product overflows 64 bits.
  const Bytes huge =
      bytes_of({0, 0, 8, 4, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255});
  EXPECT_TRUE(contains(parse_idx(huge, idx), "4294967295 x 4294967295"));
  Bytes corrupt = gzip(small_idx());
  corrupt[corrupt.size() - 6] ^= std::byte{1};  // its checksum
  EXPECT_TRUE(contains(parse_idx(corrupt, idx), "gzip"));
  const Folder folder;
  put(folder / "x.idx", with(2, 9));
  EXPECT_TRUE(contains(read_idx(folder / "x.idx", idx), "x.idx': idx type 9"));
}

TEST(Files, GunzipIsBounded) {
  Bytes out;
  const Bytes bomb = gzip(Bytes(100000, std::byte{7}));
  EXPECT_TRUE(contains(gunzip(bomb, out, 99999), "more than 99999"));
  EXPECT_TRUE(out.empty());
  EXPECT_TRUE(gunzip(bomb, out, 100000).ok());
  EXPECT_EQ(out, Bytes(100000, std::byte{7}));
  Bytes two = gzip(bytes_of({1, 2}));  // members may follow each other
  const Bytes second = gzip(bytes_of({3}));
  two.insert(two.end(), second.begin(), second.end());
  EXPECT_TRUE(gunzip(two, out).ok());
  EXPECT_EQ(out, bytes_of({1, 2, 3}));
}

TEST(Files, ReadsAllOrSaysWhy) {
  const Folder folder;
  Bytes bytes, big(200001);
  for (std::size_t i = 0; i < big.size(); ++i) big[i] = std::byte(i * 7);
  put(folder / "big", big);
  ASSERT_TRUE(read_file(folder / "big", bytes).ok());
  EXPECT_EQ(bytes, big);
  put(folder / "empty", {});
  ASSERT_TRUE(read_file(folder / "empty", bytes).ok());
  EXPECT_TRUE(bytes.empty());
  // Larger than any input: refused by its size, not read.
  { std::ofstream sparse(folder / "sparse"); }
  ASSERT_EQ(truncate((folder / "sparse").c_str(), off_t(max_file_bytes) + 1), 0);
  EXPECT_TRUE(contains(read_file(folder / "sparse", bytes), "larger than 1024 MiB"));
}

TEST(Files, WritesAllOrNothing) {
  const Folder folder;
  ASSERT_TRUE(write_file(folder / "a", bytes_of({1, 2, 3})).ok());
  ASSERT_TRUE(write_file(folder / "a", bytes_of({4})).ok());
  Bytes bytes;
  ASSERT_TRUE(read_file(folder / "a", bytes).ok());
  EXPECT_EQ(bytes, bytes_of({4}));
  EXPECT_EQ(std::distance(fs::directory_iterator(folder.path()), {}), 1);  // no temporary file is left
  EXPECT_TRUE(contains(write_file(folder / "none/a", bytes), "does not exist"));
  EXPECT_TRUE(contains(write_file(folder / "a/b", bytes), "is not a folder"));
  EXPECT_TRUE(contains(write_file(folder.path().string(), bytes), "it is a folder"));
  EXPECT_TRUE(contains(write_file("", bytes), "empty"));
}

TEST(Files, InputsAreNotOverwritten) {
  const Folder folder;
  put(folder / "in.png", bytes_of({1}));
  fs::create_symlink(folder / "in.png", folder / "link.png");
  const std::vector<std::string> inputs{folder / "in.png"};
  EXPECT_TRUE(check_output(folder / "out.png", inputs).ok());
  EXPECT_TRUE(contains(check_output(folder / "in.png", inputs), "input of this command"));
  EXPECT_TRUE(contains(check_output(folder / "link.png", inputs), "input of this command"));
}

TEST(Canvas, ClipsAndDraws) {
  Canvas canvas(20, 10, {255, 255, 255});
  canvas.fill(-5, -5, 8, 8, {10, 20, 30});
  EXPECT_EQ(canvas.image().at(2, 2, 1), 20);
  EXPECT_EQ(canvas.image().at(3, 3, 1), 255);
  canvas.fill(18, 8, 100, 100, {1, 2, 3});
  canvas.frame(-1, -1, 50, 50, {0, 0, 0});
  canvas.text(-10, 5, "clipped on every side of it", 40, {0, 0, 0});
  Canvas grown(8, 8, {0, 0, 0});
  grown.draw(pattern(2, 2, 1), 0, 0, 8, 8);
  for (int r = 0; r < 8; ++r) {
    for (int c = 0; c < 8; ++c) EXPECT_EQ(grown.image().at(r, c, 2), pattern(2, 2, 1).at(r / 4, c / 4));
  }
  Canvas shrunk(1, 1, {0, 0, 0});
  shrunk.draw({2, 2, 1, {10, 20, 30, 40}}, 0, 0, 1, 1);
  EXPECT_EQ(shrunk.image().at(0, 0), 25);
}

TEST(Canvas, TextLeavesInkWhereItSays) {
  Canvas canvas(200, 40, {255, 255, 255});
  canvas.text(100, 30, "Wavelet", 16, {0, 0, 0}, Align::right);
  const int width = Canvas::text_width("Wavelet", 16);
  EXPECT_GT(width, 30);
  int left = 200, right = -1;
  for (int r = 0; r < 40; ++r) {
    for (int c = 0; c < 200; ++c) {
      if (canvas.image().at(r, c) < 128) {
        left = std::min(left, c);
        right = std::max(right, c);
      }
    }
  }
  EXPECT_NEAR(left, 100 - width, 4);
  EXPECT_NEAR(right, 100, 4);
}

TEST(Canvas, PlanesOfFloatsSaturate) {
  const float nan = std::numeric_limits<float>::quiet_NaN(), inf = std::numeric_limits<float>::infinity();
  const float values[] = {-inf, -1, 0, 1, inf, nan};
  const Image g = grey(values, 1, 6, -1, 1);
  EXPECT_EQ(g.pixels, (std::vector<std::uint8_t>{0, 0, 128, 255, 255, 0}));
  EXPECT_EQ(grey(values, 1, 6, 1, 1).pixels.size(), 6u);  // an empty range is no division by zero
}

}  // namespace
}  // namespace wtconv::images
