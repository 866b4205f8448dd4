// What the CUDA backend decides on the host: strategies, layouts in shared memory, the division of work. No GPU.
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <tuple>

#include "cuda/cluster.hpp"
#include "cuda/kernels/bands.hpp"
#include "cuda/layout.hpp"
#include "cuda/matrix_layout.hpp"
#include "cuda/neighbours.hpp"
#include "cuda/strategy.hpp"
#include "cuda/tuning/matrix.hpp"
#include "cuda/tuning/needs.hpp"
#include "cuda/work.hpp"

namespace wtconv::cuda {
namespace {

TEST(CudaChooser, NamesItsChoiceAndWhyNotTheOthers) {
  const auto strategy = [](const Problem& p) { return std::string(choose_apply(p, h200).strategy->name()); };
  const Problem stage{.batch = 64, .channels = 96, .height = 56, .width = 56, .kernel = 5, .levels = 5};
  EXPECT_EQ(strategy(stage), "resident");
  Problem p = stage;
  p.kernel = 4;
  EXPECT_EQ(strategy(p), "levels");
  EXPECT_NE(choose_apply(p, h200).reason.find("not 4"), std::string::npos) << choose_apply(p, h200).reason;
  p = stage;
  p.dtype = DType::f64;
  EXPECT_EQ(strategy(p), "levels");
}

TEST(CudaChooser, PlanesPastOneBlockGoToClustersWhereThereAreSome) {
  const Problem p{.batch = 8, .channels = 64, .height = 256, .width = 256, .kernel = 5, .levels = 3};
  for (const auto& choose : {choose_apply, choose_gradient}) {
    EXPECT_STREQ(choose(p, h200).strategy->name(), "cluster") << choose(p, h200).reason;
    DeviceLimits ampere = h200;
    ampere.major = 8;
    EXPECT_STREQ(choose(p, ampere).strategy->name(), "tiled");
    EXPECT_NE(choose(p, ampere).reason.find("not cluster: clusters need compute capability 9, this is 8.0"),
              std::string::npos)
        << choose(p, ampere).reason;
    Problem large = p;
    large.height = large.width = 1024;
    EXPECT_STREQ(choose(large, h200).strategy->name(), "tiled") << choose(large, h200).reason;
  }
}

// By compute capability: what a block may ask for, and a multiprocessor has, in shared memory.
constexpr DeviceLimits gpus[] = {
    {8, 0, 108, 163 * 1024, 164 * 1024},  {8, 6, 84, 99 * 1024, 100 * 1024},   {8, 9, 128, 99 * 1024, 100 * 1024}, h200,
    {10, 0, 148, 227 * 1024, 228 * 1024}, {12, 0, 170, 99 * 1024, 100 * 1024},
};
constexpr int static_shared = 64;  // barriers beside the dynamic shared memory

// Every table entry can be launched wherever its strategy takes the problem, and elsewhere another strategy does. The
// launch bounds keep a block's registers within a multiprocessor's 65536, which all of these have.
TEST(CudaTuning, EveryEntryFitsOrIsRefused) {
  int taken = 0, refused = 0;
  const auto expect = [&](const DeviceLimits& gpu, const char* table, const Problem& p, const Needs& needs,
                          const char* strategy, const Decision& decision) {
    const std::string what = std::string(table) + " " + std::to_string(p.height) + " k" + std::to_string(p.kernel) +
                             " on " + std::to_string(gpu.major) + "." + std::to_string(gpu.minor);
    EXPECT_LE(needs.threads, 1024) << what;
    EXPECT_LE(needs.threads * needs.blocks, 2048) << what;
    EXPECT_GE(needs.registers(), 64) << what << ": launch bounds that force spills";
    ASSERT_NE(decision.strategy, nullptr) << what;
    if (decision.strategy->name() != std::string(strategy)) {
      EXPECT_TRUE(needs.shared > std::size_t(gpu.shared_per_block) || gpu.major < 9) << what << ": " << decision.reason;
      EXPECT_NE(decision.reason.find(std::string("not ") + strategy), std::string::npos) << decision.reason;
      ++refused;
      return;
    }
    EXPECT_LE(needs.shared + static_shared, std::size_t(gpu.shared_per_block)) << what;
    ++taken;
  };
  for (const DeviceLimits& gpu : gpus) {
    for (DType dtype : {DType::f32, DType::f16, DType::bf16}) {
      const auto problem = [&](const auto& s) {
        return Problem{.batch = 64,
                       .channels = 96,
                       .height = s.height,
                       .width = s.width,
                       .kernel = s.kernel,
                       .levels = s.levels,
                       .dtype = dtype};
      };
      const auto each = [&](const char* table, const auto& shapes, auto needs, const char* strategy, auto choose) {
        for (const auto& s : shapes) {
          const Problem p = problem(s);
          expect(gpu, table, p, needs(s, dtype), strategy, choose(p, gpu));
        }
      };
      each("apply", apply_shapes, apply_needs, "resident", choose_apply);
      each("gradient", gradient_shapes, gradient_needs, "resident", choose_gradient);
      each("cluster", cluster_shapes, cluster_needs, "cluster", choose_apply);
      each("cluster gradient", cluster_gradient_shapes, cluster_gradient_needs, "cluster", choose_gradient);
      if (dtype != DType::f32) each("matrix", matrix_shapes, matrix_needs, "resident", choose_apply);
      for (int kernel : {3, 5, 7}) {
        const Problem large = problem(ResidentShape{1000, 1000, 2, kernel, 1, 8, 1});
        expect(gpu, "tile", large, tile_needs(kernel), "tiled", choose_apply(large, gpu));
        expect(gpu, "gradient tile", large, gradient_tile_needs(kernel), "tiled", choose_gradient(large, gpu));
      }
    }
  }
  EXPECT_GT(taken, 200);
  EXPECT_GT(refused, 20);
}

// Each reformulation saves traffic, and what it does away with takes no memory.
TEST(CudaLevels, EachSwitchSavesTraffic) {
  const Problem p{.batch = 8, .channels = 16, .height = 56, .width = 56, .kernel = 5, .levels = 5};
  const auto traffic = [&](Reformulations r) { return levels_strategy(r).apply_traffic(p, h200); };
  const auto memory = [&](Reformulations r) { return levels_strategy(r).apply_workspace(p, h200); };
  const Reformulations all{true, true, true};
  for (bool Reformulations::*which :
       {&Reformulations::recompute_analysis, &Reformulations::collapse_synthesis, &Reformulations::fold_scales}) {
    Reformulations one, others = all;
    one.*which = true, others.*which = false;
    EXPECT_LT(traffic(one), traffic({}));
    EXPECT_LT(traffic(all), traffic(others));
    EXPECT_LE(memory(one), memory({}));
  }
  EXPECT_LT(memory(all), memory({}) / 2);
  EXPECT_LT(levels_strategy().gradient_traffic(p, h200), levels_strategy({}).gradient_traffic(p, h200));
  const Backend* const unfused = find_backend("cuda-unfused");
  ASSERT_NE(unfused, nullptr);
  EXPECT_EQ(unfused->plan(p, Pass::forward, {}, {.reformulations = all}).workspace, memory(all));
  EXPECT_EQ(unfused->plan(p, Pass::forward, {}, {}).workspace, memory({}));
}

TEST(CudaCluster, BandsCoverThePlaneAndBeginAtBlocksOfTheLastLevel) {
  int taken = 0;
  for (const auto cut_for : {cut_for_apply, cut_for_gradient}) {
    for (int kernel : {3, 5, 7}) {
      for (int levels : {0, 1, 3, 5, 7}) {
        for (const auto& [h, w] : {std::pair{128, 128},
                                   {256, 256},
                                   {113, 120},
                                   {131, 133},
                                   {257, 255},
                                   {200, 121},
                                   {640, 96},
                                   {40, 400},
                                   {9, 700},
                                   {512, 512}}) {
          const Problem p{.batch = 2, .channels = 3, .height = h, .width = w, .kernel = kernel, .levels = levels};
          const Cut cut = cut_for(p, h200);
          EXPECT_EQ(cut.blocks == 0, !cut.why_not.empty());
          if (cut.blocks == 0) continue;
          ++taken;
          EXPECT_GE(cut.blocks, 2);
          EXPECT_LE(cut.blocks, most_cluster_blocks);
          EXPECT_EQ(cut.band.width, w);
          EXPECT_EQ(cut.band.height % (1 << levels), 0);
          EXPECT_EQ(cut.band.height % 8, 0);
          EXPECT_GE(cut.blocks * cut.band.height, h);
          EXPECT_LT((cut.blocks - 1) * cut.band.height, h) << "an empty band";
        }
      }
    }
  }
  EXPECT_GT(taken, 20);
  const auto blocks = [](int size) {
    return cut_for_apply({.batch = 1, .channels = 1, .height = size, .width = size, .kernel = 5, .levels = 3}, h200)
        .blocks;
  };
  EXPECT_EQ(blocks(128), 4);
  EXPECT_EQ(blocks(256), 8);
  EXPECT_EQ(blocks(192), 0) << "tiled is faster";
  EXPECT_EQ(blocks(1024), 0);
}

// The blocks fill every row of every border once, with the row of the plane that lies there. Bands of one row reach
// past their neighbours.
TEST(CudaCluster, BordersHoldTheRowsOfOtherBands) {
  for (int pad : {1, 2, 3}) {
    for (int height : {1, 2, 3, 8}) {
      constexpr int blocks = 5;
      std::set<std::pair<int, int>> filled;
      for (int rank = 0; rank < blocks; ++rank) {
        for (bool down : {false, true}) {
          for (int away = 0; away < pad; ++away) {
            const BorderRow row = border_row(height, away, down);
            EXPECT_TRUE(row.from >= 0 && row.from < height);
            EXPECT_TRUE(row.to >= -pad && row.to < height + pad && (row.to < 0 || row.to >= height));
            const int there = rank + row.hops;
            if (there < 0 || there >= blocks) continue;
            EXPECT_EQ(rank * height + row.from, there * height + row.to);
            EXPECT_TRUE(filled.insert({there, row.to}).second);
          }
        }
      }
      std::set<std::pair<int, int>> expected;
      for (int rank = 0; rank < blocks; ++rank) {
        for (int to = -pad; to < height + pad; ++to) {
          const int row = rank * height + to;
          if ((to < 0 || to >= height) && row >= 0 && row < blocks * height) expected.insert({rank, to});
        }
      }
      EXPECT_EQ(filled, expected) << "pad " << pad << ", height " << height;
    }
  }
}

// Every word of a layout belongs to one image, and no item reads past the arena.
TEST(CudaLayout, ImagesDoNotOverlapAndReadsStayInside) {
  for (int kernel : {3, 5, 7}) {
    for (const auto& [h, w] : {std::pair{1, 1}, {7, 7}, {14, 14}, {15, 17}, {28, 28}, {33, 31}, {56, 56}, {3, 200}}) {
      for (int levels : {0, 1, 3, 5, 8}) {
        for (int planes : {1, 3}) {
          const Layout y = make_layout(h, w, levels, kernel, planes, 7);
          const LayoutTotals& t = y.total;
          std::set<int> taken;
          for (int l = 0; l <= levels; ++l) {
            const LevelLayout& v = y.level[l];
            EXPECT_EQ(v.pitch % 4, 0);
            EXPECT_EQ(v.offset % 4, 0);
            EXPECT_EQ(v.band % 4, 0);
            for (int s = 0; s < (l == 0 ? 1 : 4); ++s) {
              for (int r = 0; r < v.height + 2 * t.pad; ++r) {
                for (int c = 0; c < v.width + 2 * t.pad; ++c) {
                  const int skew = l == 0 ? r / 8 * t.skew : 0;
                  const int at = v.offset + s * v.band + r * v.pitch + skew + t.left - t.pad + c;
                  EXPECT_TRUE(taken.insert(at).second) << "level " << l << " row " << r << " column " << c;
                  EXPECT_LT(at, t.words);
                }
              }
              const int rows = l == 0 ? base_rows : t.rows_per_item;
              const int last_row = v.down * rows + 2 * t.pad - 1;
              const int read = v.offset + s * v.band + last_row * v.pitch + (l == 0 ? last_row / 8 * t.skew : 0) +
                               4 * v.across + 2 * t.left;
              EXPECT_LE(read, t.words + t.slack);
            }
          }
          EXPECT_EQ(t.threads % 32, 0);
          EXPECT_GE(t.threads, t.level_items);
          EXPECT_GE(t.threads, t.base_items);
          EXPECT_GE(t.threads, t.analysis_threads);
        }
      }
    }
  }
}

// Every byte of a matrix layout belongs to one pixel (with its border) or one result, windows stay inside a plane's
// images, and what the analysis stores past an image lies where zeros belong.
TEST(CudaMatrixLayout, ImagesDoNotOverlapAndAccessesStayInside) {
  for (int kernel : {3, 5, 7}) {
    for (const auto& [h, w] : {std::pair{1, 1}, {7, 7}, {14, 14}, {15, 17}, {28, 28}, {33, 31}, {56, 56}, {3, 200}}) {
      for (int levels : {0, 1, 2, 3, 8}) {
        const MatrixLayout y = make_matrix_layout(h, w, levels, kernel, 3, 8);
        const MatrixTotals& t = y.total;
        std::set<int> taken;
        const auto take = [&](int byte, int size, const char* what, int l) {
          for (int i = 0; i < size; ++i) {
            EXPECT_TRUE(taken.insert(byte + i).second) << what << " of level " << l << " at byte " << byte;
          }
          EXPECT_LE(byte + size, t.plane);
        };
        for (int l = 0; l <= levels; ++l) {
          const MatrixLevel& v = y.level[l];
          EXPECT_EQ(v.pitch % 4, 0);
          EXPECT_EQ(v.band % 4, 0);
          EXPECT_GE(v.segments * v.steps, v.down);
          EXPECT_LE(v.segments, 1 << v.segments_log);
          EXPECT_GE(v.chunks << v.columns_log, v.across);
          std::map<std::tuple<int, int, int>, int> times;  // every patch of every plane once
          for (int item = 0; item < v.items; ++item) {
            for (int row = 0; row < 16; ++row) {
              const Strip strip(v, t.planes, item, row);
              for (int i = 0; strip.taken && i < v.steps && strip.row + i < v.down; ++i) {
                ++times[{strip.plane, strip.row + i, strip.column}];
              }
            }
          }
          EXPECT_EQ(times.size(), std::size_t(3 * v.down * v.across)) << "level " << l;
          for (const auto& [patch, n] : times) EXPECT_EQ(n, 1) << "level " << l;
          const int end = l < levels ? y.level[l + 1].offset : y.level[levels > 0 ? 1 : 0].results;
          for (int s = 0; s < (l == 0 ? 1 : 4); ++s) {
            const auto byte = [&](int r, int c) { return v.offset + 2 * (s * v.band + (r + t.pad) * v.pitch + c + 4); };
            for (int r = -t.pad; r < v.height + t.pad; ++r) {
              for (int c = -4; c < v.width; ++c) take(byte(r, c), 2, "an image", l);
            }
            // Up to the last row that an item reads, and the right border.
            const int last_row = 2 * v.segments * v.steps - 1 + t.pad, reach = window_pairs(kernel) == 6 ? 4 : 2;
            if (levels > 0) {
              EXPECT_LE(byte(last_row, 4 * v.across + reach), end) << "level " << l;
            }
            if (l <= 2) {
              const int rows = (4 * t.pairs_down) >> l, columns = (8 * t.pairs_across) >> l;
              EXPECT_LE(columns, v.pitch);
              EXPECT_LE(rows + t.pad, v.band / v.pitch);
            }
          }
        }
        for (int l = 1; l <= levels; ++l) {
          const MatrixLevel& v = y.level[l];
          for (int s = 0; s < 4; ++s) {
            for (int r = 0; r < 2 * v.down; ++r) {
              take(v.results + 4 * (s * v.result_band + r * v.result_pitch), 4 * v.result_pitch, "a result", l);
            }
          }
        }
        if (levels >= 2) {  // the sums lie over the LL of the levels, which do not overlap among themselves
          const auto bytes = [&](int l) { return 4 * y.level[l].low_pitch * ((y.level[l].height + 1) / 2 * 2); };
          for (int l = 2; l <= levels; ++l) take(y.level[l].low, bytes(l), "LL", l);
          EXPECT_EQ(y.level[1].low, y.level[2].low);
          EXPECT_LE(y.level[1].low + bytes(1), t.plane);
        }
      }
    }
  }
}

// What 8 strips of a warp read at once: in the networks' planes, no two words of one bank at levels 0 and 1. Strips
// that are not taken read beside the others.
TEST(CudaMatrixLayout, WindowsDoNotMeetInABank) {
  for (const MatrixShape& s : matrix_shapes) {
    const MatrixLayout y = make_matrix_layout(s);
    for (int l = 0; l <= s.levels; ++l) {
      const MatrixLevel& v = y.level[l];
      for (int item = 0; item < v.items; ++item) {
        for (int first : {0, 8}) {
          std::map<int, std::set<int>> banks;
          for (int g = 0; g < 8; ++g) {
            const Strip strip(v, s.planes, item, first + g);
            EXPECT_TRUE(strip.plane >= 0 && strip.plane < s.planes && strip.column >= 0 && strip.column < v.across);
            EXPECT_TRUE(strip.row >= 0 && strip.row < v.segments * v.steps);
            for (int q = 0; q < 4; ++q) {
              const int element = 2 * strip.row * v.pitch + 4 * strip.column + matrix_left - window_left(s.kernel);
              const int word = (strip.plane * y.total.plane + v.offset) / 4 + element / 2 + q;
              banks[word % 32].insert(word);
            }
          }
          for (const auto& [bank, words] : banks) {
            if (l < 2) {
              EXPECT_EQ(words.size(), 1u) << s.height << " k" << s.kernel << " level " << l << " item " << item;
            }
          }
        }
      }
    }
  }
}

TEST(CudaWork, CoversEveryItemOnceAndSlotsAreUnique) {
  for (const auto& [per_channel, channels, blocks] :
       {std::tuple<int, int, int>{64, 96, 528}, {3, 5, 4}, {1, 7, 7}, {16, 3, 48}, {5, 1, 2}, {7, 11, 1}}) {
    const Work work{.per_channel = per_channel, .channels = channels, .blocks = blocks};
    std::set<std::int64_t> slots;
    std::int64_t expected = 0;
    for (std::int64_t block = 0; block < work.blocks; ++block) {
      EXPECT_EQ(work.first(block), expected);
      std::int64_t last_channel = -1;
      Cursor at(work, work.first(block));
      for (; expected < work.first(block + 1); ++expected, at.advance(work)) {
        EXPECT_EQ(work.owner(expected), block);
        EXPECT_EQ(at.channel, expected / per_channel);
        EXPECT_EQ(at.group, expected % per_channel);
        if (at.channel != last_channel) {
          last_channel = at.channel;
          EXPECT_TRUE(slots.insert(work.slot(block, at.channel)).second);
          EXPECT_LT(work.slot(block, at.channel), work.slots());
        }
      }
    }
    EXPECT_EQ(expected, work.items());
  }
}

// By groups of channels and parts of the batch: every plane of every channel comes once, and the partials of a channel
// (as the closing kernel finds them) are those that its blocks write.
TEST(CudaWork, GroupsOfChannelsCoverEverythingOnce) {
  for (const auto& [per_channel, channels, most] : {std::tuple<int, int, int>{64, 96, 45},
                                                    {5, 100, 3},
                                                    {1, 7, 16},
                                                    {37, 9, 50},
                                                    {3, 800, 40},
                                                    {64, 8, 1},
                                                    {0, 9, 3}}) {
    const Work work = in_groups({.per_channel = per_channel, .channels = channels}, 8, most, most % 2 == 1);
    const int groups = (channels + 7) / 8;
    EXPECT_LE(work.blocks, std::max(most, 1));
    if (per_channel > 0) {
      EXPECT_EQ(work.groups(), groups);
    }
    std::set<std::pair<int, int>> places;
    std::set<std::int64_t> written, read;
    for (std::int64_t block = 0; block < work.blocks; ++block) {
      Cursor at(work, work.first(block));
      for (std::int64_t n = work.first(block); n < work.first(block + 1); ++n, at.advance(work)) {
        const Place place = place_in_groups(work, at);
        EXPECT_LT(place.channel, groups);
        EXPECT_TRUE(places.insert({place.channel, place.item}).second);
        for (int member = 0; member < 8; ++member) written.insert(work.slot(block, at.channel, member));
      }
    }
    for (int g = 0; g < groups; ++g) {
      for (int i = 0; i < per_channel; ++i) EXPECT_TRUE(places.count({g, i})) << "group " << g << " item " << i;
    }
    for (std::int64_t c = 0; c < 8 * groups && per_channel > 0; ++c) {
      for (std::int64_t at = c / 8; at < work.channels; at += groups) {
        const std::int64_t last = work.owner((at + 1) * work.per_channel - 1);
        for (std::int64_t block = work.owner(at * work.per_channel); block <= last; ++block) {
          EXPECT_TRUE(read.insert(work.slot(block, at, c % 8)).second);
          EXPECT_LT(work.slot(block, at, c % 8), work.slots());
        }
      }
    }
    EXPECT_EQ(read, written);
  }
}

// Every row of every plane belongs to one block's share; the images of a share do not overlap; the words that a warp
// copies at once lie on different banks.
TEST(CudaNeighbours, SharesCoverThePlanes) {
  for (int element : {2, 4}) {
    const int images = neighbours / word_channels(element), pixels = 32 / images;
    for (const auto& [h, w, planes] :
         {std::tuple{56, 56, 1}, {28, 28, 2}, {14, 14, 4}, {7, 7, 16}, {1, 1, 1}, {55, 53, 1}, {3, 200, 2}}) {
      const Shares s = make_shares(h, w, planes, element);
      EXPECT_GE(s.rows * neighbours, planes * h);
      EXPECT_EQ(s.image % 4, 0);
      EXPECT_GE(s.image, s.rows * w);
      EXPECT_EQ(shares_bytes(h, w, planes, element), 4 * images * s.image);
      std::set<int> banks;
      for (int i = 0; i < images; ++i) {
        for (int pixel = 0; pixel < pixels; ++pixel) banks.insert((i * s.image + pixel) % 32);
      }
      EXPECT_EQ(banks.size(), 32u);
    }
  }
}

TEST(CudaNeighbours, TakesChannelsThatLieCloserThanPixels) {
  const Problem p{.batch = 2, .channels = 96, .height = 56, .width = 56, .kernel = 5, .levels = 5};
  const Image pixels{.batch = 96 * 56 * 56, .channel = 1, .row = 96 * 56, .column = 96};
  const Image planes{.batch = 96 * 56 * 56, .channel = 56 * 56, .row = 56, .column = 1};
  EXPECT_TRUE(wants_neighbours(pixels, pixels, p, h200));
  EXPECT_TRUE(wants_neighbours(pixels, planes, p, h200));
  EXPECT_TRUE(wants_neighbours(planes, pixels, p, h200));
  EXPECT_FALSE(wants_neighbours(planes, planes, p, h200));
  DeviceLimits older = h200;
  older.major = 8;
  EXPECT_FALSE(wants_neighbours(pixels, pixels, p, older)) << "no clusters";
  Problem few = p;
  few.channels = least_neighbours - 1;
  EXPECT_FALSE(wants_neighbours(pixels, pixels, few, h200)) << "most blocks of a cluster would idle";
  Image far = pixels;
  far.row = std::int64_t{1} << 28;
  EXPECT_FALSE(wants_neighbours(far, pixels, p, h200)) << "offsets past 32 bits";
}

TEST(CudaNeighbours, WholeWordsNeedPairsOfChannels) {
  Problem p{.batch = 2, .channels = 96, .height = 14, .width = 14, .kernel = 5, .levels = 3, .dtype = DType::f16};
  Image i{.batch = 96 * 14 * 14, .channel = 1, .row = 96 * 14, .column = 96};
  EXPECT_TRUE(has_whole_words(i, p));
  i.data = reinterpret_cast<void*>(2);
  EXPECT_FALSE(has_whole_words(i, p));
  p.dtype = DType::f32;
  EXPECT_TRUE(has_whole_words(i, p));
  p.dtype = DType::bf16;
  i.data = nullptr;
  for (auto member : {&Image::batch, &Image::row, &Image::column}) {
    Image odd = i;
    ++(odd.*member);
    EXPECT_FALSE(has_whole_words(odd, p));
  }
  p.channels = 95;
  EXPECT_FALSE(has_whole_words(i, p));
  p.channels = 96;
  i.step = 2;
  EXPECT_FALSE(has_whole_words(i, p));
}

TEST(CudaWork, LockstepGivesEveryChannelAsManyBlocks) {
  const Work work{.per_channel = 64, .channels = 96};
  EXPECT_EQ(choose_blocks(work, 396, false), 396);
  EXPECT_EQ(choose_blocks(work, 396, true), 384);
  EXPECT_EQ(choose_blocks(Work{.per_channel = 2, .channels = 3}, 660, true), 6);
  EXPECT_EQ(choose_blocks(Work{.per_channel = 0, .channels = 3}, 660, false), 1);
  EXPECT_EQ(choose_blocks(Work{.per_channel = 9, .channels = 1000}, 660, true), 660);
}

}  // namespace
}  // namespace wtconv::cuda
